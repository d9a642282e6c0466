#!/usr/bin/env bash
# Provides the CustomResourceDefinitions of the real Prometheus operator from its Go module, whose contents go.sum pins. Reports on
# stderr what it does, and prints on stdout the directory that has them.
#
#   HEADGATE_CACHE  the cache directory; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
what=prometheus-operator
# shellcheck source=../from-source.sh
source ../from-source.sh
definitions=$root/$(key go.mod go.sum build.sh)

copy() {
  local module shown directory copying
  [[ ! -e $definitions ]] || return 0
  find_go
  module=$(awk '$1 == "require" { print $2; exit }' go.mod)
  say "fetching the module $module"
  shown=$(GOTOOLCHAIN=local GOWORK=off GOFLAGS='' "$go" mod download -json "$module") || die "cannot be fetched: $shown"
  directory=$(sed -n 's/^\t"Dir": "\(.*\)",\?$/\1/p' <<<"$shown")
  copying=$(mktemp -d -- "$root/.copying.XXXXXX")
  chmod 755 "$copying"
  # Not from the module's own folder at the tests: others may clean Go's cache meanwhile.
  install -m 644 -t "$copying" -- "$directory"/example/prometheus-operator-crd/monitoring.coreos.com_{podmonitors,prometheusrules}.yaml
  mv -T -- "$copying" "$definitions"
  say "copied to $definitions after $(elapsed)"
}

[[ -e $definitions ]] || locked copy >&2
printf '%s\n' "$definitions"
