#!/usr/bin/env bash
# Provides Cluster API's core controllers for `make cluster-api`; builds them if they are not in the cache.
# Reports on stderr what it does, and prints the directory of the program `core` and of its CRDs on stdout.
#
#   HEADGATE_CACHE  the cache directory; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
set -euo pipefail

if (($#)); then
  printf 'cluster-api: usage: build.sh\n' >&2
  exit 1
fi

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
what=cluster-api
# shellcheck source=../from-source.sh
source ../from-source.sh
directory=$root/$(key go.mod go.sum build.sh ../from-source.sh)

build() {
  local module
  if [[ -e $directory/finished ]]; then return; fi
  find_go
  say "building Cluster API's core controllers with Go $(go_version "$go")"
  rm -rf -- "$root"/.building # of a killed build; none is running, since this one has the lock
  mkdir -- "$root/.building"
  run_go build -ldflags '-s -w' -o "$root/.building/core" sigs.k8s.io/cluster-api/core
  module=$(run_go list -m -f '{{.Dir}}' sigs.k8s.io/cluster-api)
  mkdir -- "$root/.building/crds"
  cp -- "$module"/core/config/crd/bases/*.yaml "$root/.building/crds/"
  chmod -R u+w "$root/.building/crds"
  touch "$root/.building/finished"
  rm -rf -- "$directory"
  mv -T -- "$root/.building" "$directory"
  say "built in $(elapsed): $directory"
}

[[ -e $directory/finished ]] || locked build >&2
printf '%s\n' "$directory"
