#!/usr/bin/env bash
# Provides the real krew and its validate-krew-manifest, with which release/krew.sh checks the plugin manifest; builds them from Go
# modules if they are not in the cache. Reports on stderr what it does, and prints on stdout the directory that has both.
#
#   HEADGATE_CACHE  the cache directory; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
what=krew
# shellcheck source=../from-source.sh
source ../from-source.sh
programs=$root/$(key go.mod go.sum build.sh ../from-source.sh)

build_unless_built() {
  local building program
  [[ ! -e $programs/finished ]] || return 0
  find_go
  say "building krew $(awk '$1 == "sigs.k8s.io/krew" { print $2; exit }' go.mod) with Go $(go_version "$go")"
  rm -rf -- "$root"/.building.* # of killed builds; none is running, since this one has the lock
  building=$(mktemp -d -- "$root/.building.XXXXXX")
  chmod 755 "$building"
  for program in krew validate-krew-manifest; do
    run_go build -ldflags '-s -w' -o "$building/$program" "sigs.k8s.io/krew/cmd/$program"
  done
  touch "$building/finished"
  rm -rf -- "$programs"
  mv -T -- "$building" "$programs"
  say "built in $(elapsed): $programs, $(du -sm -- "$programs" | cut -f 1) MB"
}

[[ -e $programs/finished ]] || locked build_unless_built >&2
printf '%s\n' "$programs"
