#!/usr/bin/env bash
# Runs every test of the workspace, side by side: those of integration and maintenance wait for clusters most of the time, the
# stories compute. `lab` is there to build the program that they start. A target that is added is among the others by itself.
# Drills, rolls and the tests of the drill's data plane come last, with nothing beside them: they watch what happens when, which a
# busy machine shows in another order, or late.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

# Half of what tests compute is kube-apiserver's start, a quarter of that its garbage collection.
export GOGC=${GOGC:-400}

readonly last=(drill:: rollover::)
# Those of the stories that are in real time.
readonly clusters=(kube_apiserver a_write_of_a_stopped_process)
tests() { cargo test --locked --workspace "$@"; }

# What cargo ignores by default. CI has all that it needs, but Cluster API's controllers: `make cluster-api`.
ignored=()
if [[ ${CI:-} == true ]] || tests/prerequisites.sh ignored; then
  ignored=(--include-ignored --skip real_machine_controller)
fi

tests --no-run
# An assignment ends the script where these fail.
targets=$(cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
targets = (target for package in json.load(sys.stdin)["packages"] for target in package["targets"])
print(*sorted({target["name"] for target in targets if target["kind"] == ["test"] and target["test"] and target["name"] not in ("integration", "lab", "maintenance", "stories", "closed_forms", "data_plane", "draining")}), sep="\n")')
mapfile -t targets <<<"$targets"

logs=() processes=()
# beside COMMAND...: tests in the background, whose output is printed at the end
beside() {
  logs+=("$(mktemp)")
  "$@" >"${logs[-1]}" 2>&1 &
  processes+=($!)
}
trap 'kill "${processes[@]}" 2>/dev/null || true; rm -f -- "${logs[@]}"' EXIT

others() {
  local code=0
  tests --lib --bins "${targets[@]/#/--test=}" --no-fail-fast -- "${ignored[@]}" || code=$?
  tests --test stories --no-fail-fast -- "${ignored[@]}" "${clusters[@]}" || code=$?
  tests --doc || code=$?
  return "$code"
}
# Their time is paused, so they may wait for a processor; clusters whose leases run out may not.
beside nice cargo test --locked --workspace --test stories --no-fail-fast -- "${ignored[@]}" "${clusters[@]/#/--skip=}"
beside others
# One test, on a cluster of its own, for whose pods it waits for minutes.
beside tests --test maintenance -- "${ignored[@]}"

code=0
tests --test integration --test lab --no-fail-fast -- "${ignored[@]}" "${last[@]/#/--skip=}" || code=$?
for process in "${processes[@]}"; do
  wait "$process" || code=$?
done
cat -- "${logs[@]}"
# Four at a time, as CI runs tests otherwise, are late on two cores now and then.
tests --test closed_forms --test data_plane --test draining --no-fail-fast -- "${ignored[@]}" --test-threads=3 || code=$?
tests --test integration --test lab --no-fail-fast -- "${ignored[@]}" "${last[@]}" --test-threads=3 || code=$?
exit "$code"
