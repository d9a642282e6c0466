#!/usr/bin/env bash
# Provides the real cloud-controller-manager of Azure, which judges the emulator, building it where that has not been
# done yet. Says on stderr what it does and prints one line on stdout: the program.
#
#   HEADGATE_CACHE  where builds are kept; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
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
  rm -f -- "$root"/.building # left behind by a build that was killed: none runs now, the lock is ours
  run_go build -ldflags '-s -w' -o "$root/.building" .
  mv -T -- "$root/.building" "$program"
  say "built in $(elapsed): $program"
}

[[ -x $program ]] || locked build >&2
printf '%s\n' "$program"
