"""Changes decisions one at a time, with cargo-mutants, and counts which changes no test notices: run.py MINUTES SEED [CRATE...] (README.md)."""

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
OUTPUT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "mutants"
# The tests of a crate beside its unit tests, and for how many seconds of the budget one mutant counts.
CRATES = {
    "core": ([], 10),
    "kubernetes": (["stories"], 30),
    "azure": (["stories"], 20),
    "agent": (["probes_marker"], 20),
    "controller": (["rules", "stories"], 60),
    "maintenance": (["plan", "rollout", "evacuation", "stories"], 30),
}
# What the product is tried with.
LAB = {
    "azure-emulator": ([], 25),
    "budget": ([], 10),
    "drill": (["data_plane", "draining"], 60),
}
# How cargo-mutants ends: all caught, some missed, some timed out.
ENDED, BASELINE_FAILED = (0, 2, 3), 4
WANTED_PERCENT, WANTED_PERCENT_OF_LAB = 93, 85
# A listed survivor among fewer says nothing of the rest.
MIN_SAMPLE = 50


def git(*arguments):
    """What git prints; nothing where this is no checkout, or there is no git."""
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def mutants(*arguments, **options):
    """cargo-mutants with `.cargo/mutants.toml`. It changes the files in place, and restores them."""
    # A property that fails here is no regression of the code.
    environment = os.environ | {"PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1"}
    return subprocess.run(["cargo", "mutants", "--in-place", *arguments], cwd=ROOT, text=True, env=environment, **options)


def without_place(name):
    """A mutant's name without line and column, which change with every edit."""
    return re.sub(r":\d+:\d+: ", ": ", name, count=1)


def listed_survivors():
    lines = (ROOT / "tests/mutants/survivors.txt").read_text(encoding="utf-8").splitlines()
    return [line.split(" | ", 1) for line in lines if line and not line.startswith("#")]


def run_crate(crate, shard):
    """The names of a crate's mutants by what became of them."""
    tests, _ = (CRATES | LAB)[crate]
    selected = [f"--cargo-test-arg={argument}" for argument in ["--lib", *(f"--test={test}" for test in tests)]]
    output = OUTPUT / crate
    output.mkdir(parents=True, exist_ok=True)
    arguments = ["-p", f"headgate-{crate}", "--shard", shard, "--sharding", "round-robin", "--output", output, *selected]
    # A shard may have no mutant of a small crate: cargo-mutants writes nothing then.
    if not json.loads(mutants("--list", "--json", *arguments[:6], check=True, capture_output=True).stdout):
        return {}
    code = mutants(*arguments).returncode
    if code == BASELINE_FAILED:
        sys.exit(f"mutants: the tests of headgate-{crate} fail without a mutant")
    if code not in ENDED:
        sys.exit(f"mutants: cargo-mutants ended with {code} before it had tried all of headgate-{crate}; look for a changed file with git status")
    outcomes = json.loads((output / "mutants.out/outcomes.json").read_text(encoding="utf-8"))["outcomes"]
    found = {}
    for outcome in outcomes[1:]:
        found.setdefault(outcome["summary"], []).append(without_place(outcome["scenario"]["Mutant"]["name"]))
    return found


def main(minutes, seed, *chosen):
    # Of the property tests.
    os.environ.setdefault("PROPTEST_RNG_SEED", str(seed))
    commit = git("describe", "--always", "--exclude", "*")
    if git("status", "--porcelain"):
        sys.exit("mutants: commit first: files are changed in place")
    everything = json.loads(mutants("--list", "--json", "--workspace", check=True, capture_output=True).stdout)
    listed, names = listed_survivors(), {without_place(mutant["name"]) for mutant in everything}
    reasons = dict(listed)
    sizes = Counter(mutant["package"].removeprefix("headgate-") for mutant in everything)
    crates = chosen or CRATES
    wanted = WANTED_PERCENT_OF_LAB if LAB.keys() >= set(crates) else WANTED_PERCENT
    shards = math.ceil(sum(sizes[crate] * (CRATES | LAB)[crate][1] for crate in crates) / (60 * minutes))
    shard = f"{seed % shards}/{shards}"

    rows, missed, totals, tried = [], [], Counter(), 0
    for crate in crates:
        found = run_crate(crate, shard)
        tried += sum(map(len, found.values()))
        # A test that hangs notices, too.
        caught = len(found.get("CaughtMutant", [])) + len(found.get("Timeout", []))
        survivors = found.get("MissedMutant", [])
        missed += survivors
        totals.update(caught=caught, viable=caught + len(survivors))
        rows.append(f"| {crate} | {sizes[crate]} | {caught + len(survivors)} | {caught} |")
    if not tried:
        sys.exit("mutants: no mutant was tried")
    percent = 100 * totals["caught"] / max(totals["viable"], 1)
    # A line stands for one change: a function may have several of the same name.
    new = Counter(name for name in missed if not name.startswith("lab/")) - Counter(name for name, _ in listed)
    gone = [name for name in reasons if name not in names]
    report = [
        f"Commit {commit}, shard {shard} (seed {seed}): {totals['caught']} of {totals['viable']} caught, {percent:.1f} %.",
        "",
        "| crate | mutants | tried, viable | caught |",
        "|---|---|---|---|",
        *rows,
        "",
        *(f"- {name}: {reasons.get(name, '**not listed**')}" for name in missed),
    ]
    (OUTPUT / "report.md").write_text("\n".join(report) + "\n", encoding="utf-8")
    print("\n".join(report))
    for name in new.elements():
        print(f"mutants: survives, and is not in survivors.txt: {name}", file=sys.stderr)
    for name in gone:
        print(f"mutants: is in survivors.txt, but is no mutant any more: {name}", file=sys.stderr)
    is_too_little = percent < wanted and totals["viable"] >= MIN_SAMPLE
    if is_too_little:
        print(f"mutants: less than {wanted} % caught", file=sys.stderr)
    sys.exit(bool(new or gone or is_too_little))


main(float(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
