#!/usr/bin/env bash
# Runs every test of the workspace, side by side: those of integration and maintenance wait for clusters most of the time,
# all others compute. `lab` is there to build the program that they start. A target that is added is among the others by itself.
# Drills and rolls come last, with nothing beside them: they watch what happens when, which a busy machine shows in another order, or late.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

readonly last=(drill:: rollover::)
tests() { cargo test --locked --workspace "$@"; }

# What cargo ignores by default. CI has all that it needs, but Cluster API's controllers: `make cluster-api`.
ignored=()
if [[ ${CI:-} == true ]] || tests/prerequisites.sh ignored; then
  ignored=(--include-ignored --skip real_machine_controller)
fi

tests --no-run
mapfile -t targets < <(cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
targets = (target for package in json.load(sys.stdin)["packages"] for target in package["targets"])
print(*sorted({target["name"] for target in targets if target["kind"] == ["test"] and target["test"] and target["name"] not in ("integration", "lab", "maintenance")}), sep="\n")')

log=$(mktemp) maintenance_log=$(mktemp)
others() {
  tests --lib --bins "${targets[@]/#/--test=}" --no-fail-fast -- "${ignored[@]}" && tests --doc
}
others >"$log" 2>&1 &
others=$!
# One test, on a cluster of its own, for whose pods it waits for minutes.
tests --test maintenance -- "${ignored[@]}" >"$maintenance_log" 2>&1 &
maintenance=$!
trap 'kill "$others" "$maintenance" 2>/dev/null || true; rm -f -- "$log" "$maintenance_log"' EXIT

code=0
tests --test integration --test lab --no-fail-fast -- "${ignored[@]}" "${last[@]/#/--skip=}" || code=$?
wait "$maintenance" || code=$?
wait "$others" || code=$?
cat -- "$maintenance_log" "$log"
tests --test integration --test lab --no-fail-fast -- "${ignored[@]}" "${last[@]}" || code=$?
exit "$code"
