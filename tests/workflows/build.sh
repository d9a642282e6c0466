#!/usr/bin/env bash
# Checks the GitHub workflows with actionlint, which it builds from Go modules where that has not been done yet.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
what=workflows
# shellcheck source=../from-source.sh
source ../from-source.sh
checker=$root/$(key go.mod go.sum build.sh ../from-source.sh)/actionlint

build_unless_built() {
  [[ ! -e $checker ]] || return 0
  find_go
  say "building actionlint with Go $(go_version "$go")"
  mkdir -p -- "${checker%/*}"
  run_go build -o "$checker.building" github.com/rhysd/actionlint/cmd/actionlint
  mv -- "$checker.building" "$checker"
}

[[ -e $checker ]] || locked build_unless_built >&2
"$checker" -no-color ../../.github/workflows/*.yml
say 'the workflows are valid'
