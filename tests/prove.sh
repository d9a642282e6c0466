#!/usr/bin/env bash
# Runs parts of `make prove` one after the other, each to its end, and prints a table of them. Logs and table are in target/prove.
#
#   tests/prove.sh PART...
set -uo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

stories=${STORIES:-5000} chaos_minutes=${CHAOS_MINUTES:-30} mutants_minutes=${MUTANTS_MINUTES:-60} seed=${SEED:-1}

# What a part's output says that it counted.
counted() {
  case $1 in
    model) echo '[a-z][a-z ]*: [0-9]+ states, depth [0-9]+' ;;
    fault-points) echo '[0-9]+ runs: [0-9]+ failed, and [0-9]+ did not reach their points' ;;
    stories) echo '[^:]+: ([0-9]+) of \1 runs passed|[0-9]+ sequences of [0-9]+ steps' ;;
    campaign) echo '.*[0-9]+ accepted, [0-9]+ refused' ;;
    mutants) echo '[0-9]+ of [0-9]+ caught, [0-9.]+ %' ;;
    chaos) echo '^[0-9]+ s, [0-9]+ rounds?, [0-9]+ violations?' ;;
    coverage) echo '^[a-z-]+( +[0-9]+ +[0-9.]+ %)+' ;;
  esac
}

run() {
  case $1 in
    stories) make stories ARGS="$stories" ;;
    chaos) make chaos MINUTES="$chaos_minutes" SEED="$seed" ;;
    mutants) make mutants MINUTES="$mutants_minutes" SEED="$seed" ;;
    *) make "$1" ;;
  esac
}

results=target/prove
mkdir -p "$results"
failed=0
{
  printf 'Commit %s.\n\n' "$(git describe --always --dirty --exclude '*' 2>/dev/null)"
  printf '| part | counted | minutes | result |\n|---|---|---|---|\n'
} >"$results/table.md"
for part in "$@"; do
  printf '\n== %s\n' "$part" >&2
  start=$SECONDS result=passed
  run "$part" 2>&1 | tee "$results/$part.log" >&2 || result=failed failed=1
  found=$(grep -hoE -- "$(counted "$part")" "$results/$part.log" | tr -s ' ' | paste -sd ';' | sed 's/;/; /g')
  printf '| %s | %s | %d | %s |\n' "$part" "$found" $(((SECONDS - start + 59) / 60)) "$result" >>"$results/table.md"
done
printf '\n'
cat "$results/table.md"
exit "$failed"
