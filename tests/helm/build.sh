#!/usr/bin/env bash
# Provides the real helm, and chart-oci-layout, for the chart's tests and for packaging it; builds them if they are not in the
# cache. Reports on stderr what it does, and prints on stdout the directory that has both.
# `build.sh lint` checks the Go code instead.
#
#   HEADGATE_CACHE  the cache directory; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
set -euo pipefail

case ${1-} in
  '' | lint) ;;
  *)
    printf 'helm: usage: build.sh [lint]\n' >&2
    exit 1
    ;;
esac

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
what=helm
# shellcheck source=../from-source.sh
source ../from-source.sh
programs=$root/$(key go.mod go.sum ./*.go build.sh ../from-source.sh)

build() {
  local building
  if [[ -e $programs/finished ]]; then return; fi
  find_go
  say "building helm $(awk '$1 == "helm.sh/helm/v4" { print $2; exit }' go.mod) with Go $(go_version "$go"); the first time 2 minutes on 2 cores, after the control plane half a minute"
  rm -rf -- "$root"/.building.* # of killed builds; none is running, since this one has the lock
  building=$(mktemp -d -- "$root/.building.XXXXXX")
  chmod 755 "$building"
  run_go build -ldflags '-s -w' -o "$building/helm" .
  ln -s helm "$building/chart-oci-layout"
  touch "$building/finished"
  rm -rf -- "$programs"
  mv -T -- "$building" "$programs"
  say "built in $(elapsed): $programs, $(du -sm -- "$programs" | cut -f 1) MB"
}

if [[ ${1-} == lint ]]; then
  lint_go >&2
  exit
fi

[[ -e $programs/finished ]] || locked build >&2
printf '%s\n' "$programs"
