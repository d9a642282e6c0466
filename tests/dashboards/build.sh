#!/usr/bin/env bash
# Provides Grafana's published schema and the program that checks dashboards against it; fetches them from npm if they are not in the
# cache. Reports on stderr what it does, and prints the path of the program on stdout: node PATH FILE.json...
#
#   HEADGATE_CACHE  the cache directory; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
set -euo pipefail

if (($#)); then
  printf 'dashboards: usage: build.sh\n' >&2
  exit 1
fi

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
what=dashboards
# shellcheck source=../from-source.sh
source ../from-source.sh
directory=$root/$(key package.json package-lock.json check.mjs build.sh ../from-source.sh)

build() {
  local building
  if [[ -e $directory/finished ]]; then return; fi
  command -v npm >/dev/null || die "needs node and npm. On Debian: apt-get install nodejs npm"
  say "fetching Grafana's schema from npm; 10 s, 33 MB"
  rm -rf -- "$root"/.building.* # of killed builds; none is running, since this one has the lock
  building=$(mktemp -d -- "$root/.building.XXXXXX")
  cp package.json package-lock.json check.mjs "$building/"
  (cd -- "$building" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) >&2
  touch "$building/finished"
  rm -rf -- "$directory"
  mv -T -- "$building" "$directory"
}

[[ -e $directory/finished ]] || locked build >&2
printf '%s\n' "$directory/check.mjs"
