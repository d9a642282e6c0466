#!/usr/bin/env bash
# Provides Azure's real cloud-controller-manager for a test of the emulator; builds it if it is not in the cache.
# Reports on stderr what it does, and prints the path of the program on stdout.
#
#   HEADGATE_CACHE  the cache directory; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
set -euo pipefail

if (($#)); then
  printf 'cloud-controller-manager: usage: build.sh\n' >&2
  exit 1
fi

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
what=cloud-controller-manager
# shellcheck source=../from-source.sh
source ../from-source.sh
program=$root/$(key go.mod go.sum main.go ../from-source.sh)

build() {
  if [[ -x $program ]]; then return; fi
  find_go
  say "building cloud-provider-azure with Go $(go_version "$go"); the first time 5 minutes on 2 cores, 2 GB of Go's build cache"
  rm -f -- "$root"/.building # of a killed build; none is running, since this one has the lock
  run_go build -ldflags '-s -w' -o "$root/.building" .
  mv -T -- "$root/.building" "$program"
  say "built in $(elapsed): $program"
}

[[ -x $program ]] || locked build >&2
printf '%s\n' "$program"
