#!/usr/bin/env bash
# The checks that take too long for CI. Runs all of them, or those that are named, and ends at the first that fails:
#
#   tests/extended.sh [list | STAGE...]
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

# Name, then command. To add a check, add a line.
stages=(
  'oldest-kubernetes make test-oldest'
  'cloud-controller-manager make cloud-controller-manager'
  'cluster-api make cluster-api'
  'prove make prove CHAOS_MINUTES=2'
  'scale make scale NODES=300 AGENTS=5 MINUTES=1'
  'fuzz make fuzz'
  'release release/twice.sh'
  'scans tests/scans/build.sh'
)

names() { printf '%s\n' "${stages[@]%% *}"; }

selected=("$@")
case ${1-} in
  list)
    names
    exit
    ;;
  '') mapfile -t selected < <(names) ;;
esac

for name in "${selected[@]}"; do
  if ! names | grep -qxF -- "$name"; then
    printf 'extended: no stage is called %s; the stages are:\n%s\n' "$name" "$(names)" >&2
    exit 2
  fi
done
for name in "${selected[@]}"; do
  for stage in "${stages[@]}"; do
    [[ ${stage%% *} == "$name" ]] || continue
    start=$SECONDS
    printf '\n== %s\n' "$name"
    # shellcheck disable=SC2086 # a command and its arguments
    ${stage#* }
    printf 'stage %s: %d s\n' "$name" $((SECONDS - start))
  done
done
