#!/usr/bin/env bash
# Provides Karpenter with its kwok provider, and kwok, for `make autoscalers`; builds them if they are not in the cache.
# Reports on stderr what it does, and prints the directory of the programs `karpenter` and `kwok` and of Karpenter's CRDs on stdout.
#
#   HEADGATE_CACHE  the cache directory; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
set -euo pipefail

if (($#)); then
  printf 'autoscalers: usage: build.sh\n' >&2
  exit 1
fi

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
what=autoscalers
# shellcheck source=../from-source.sh
source ../from-source.sh
directory=$root/$(key go.mod go.sum build.sh ../from-source.sh)

build() {
  local module
  if [[ -e $directory/finished ]]; then return; fi
  find_go
  say "building Karpenter and kwok with Go $(go_version "$go"); the first time 6 minutes on 2 cores, 2 GB of Go's build cache"
  rm -rf -- "$root"/.building # of a killed build; none is running, since this one has the lock
  mkdir -- "$root/.building"
  run_go build -ldflags '-s -w' -o "$root/.building/karpenter" sigs.k8s.io/karpenter/kwok
  run_go build -ldflags '-s -w' -o "$root/.building/kwok" sigs.k8s.io/kwok/cmd/kwok
  module=$(run_go list -m -f '{{.Dir}}' sigs.k8s.io/karpenter)
  mkdir -- "$root/.building/crds"
  cp -- "$module"/pkg/apis/crds/*.yaml "$module"/kwok/apis/crds/*.yaml "$root/.building/crds/"
  chmod -R u+w "$root/.building/crds"
  touch "$root/.building/finished"
  rm -rf -- "$directory"
  mv -T -- "$root/.building" "$directory"
  say "built in $(elapsed): $directory"
}

[[ -e $directory/finished ]] || locked build >&2
printf '%s\n' "$directory"
