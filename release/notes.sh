#!/usr/bin/env bash
# Prints the notes of a release: its section of CHANGELOG.md, which must exist and not be empty.
#
#   release/notes.sh VERSION
set -euo pipefail
(($# == 1)) || { printf 'notes: usage: notes.sh VERSION\n' >&2; exit 1; }
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
notes=$(awk -v heading="## [$1]" '/^## \[/ { found = index($0, heading) == 1; next } found' CHANGELOG.md)
[[ $notes == *[![:space:]]* ]] || { printf 'notes: CHANGELOG.md has no section %s: name the section Unreleased after the version\n' "$1" >&2; exit 1; }
printf '%s\n' "$notes"
