"""Puts the files of several runs of the benchmarks together: a table in Markdown, with the median and the range of each figure.

    python3 benches/table.py target/headgate-bench/COMMIT [--runs 5] [--write benches/README.md]

All files must be of one commit, without changes to it, one profile, one kernel and one machine, and each row must have run as often as
`--runs` says. The rows of the leader are a table of their own. With `--write` each table that has rows replaces what is between its
marks in the file.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from statistics import median

BEGIN, END = "<!-- benches/table.py: {} -->\n", "<!-- the end of the table -->"
SAME = ("commit", "profile", "kernel", "processor", "cores", "precedence")


def refuse(reason):
    sys.exit(f"benches/table.py: {reason}")


def results(directory):
    """The results by the name of the row, in the order of the runs."""
    rows, stated = {}, {}
    files = [file for file in Path(directory).glob("*.json") if re.search(r"-\d+$", file.stem)]
    for file in sorted(files, key=lambda file: (file.stem.rsplit("-", 1)[0], int(file.stem.rsplit("-", 1)[1]))):
        result = json.loads(file.read_text(encoding="utf-8"))
        conditions = result.get("conditions", {})
        for name in SAME:
            if name not in conditions:
                refuse(f"{file} does not state its {name}")
            known, where = stated.setdefault(name, (conditions[name], file))
            if known != conditions[name]:
                refuse(f"the {name} of {file} is {conditions[name]}, and {known} of {where}; run all rows again")
        rows.setdefault(result["name"], []).append(result)
    if not rows:
        refuse(f"{directory} has no results")
    commit = stated["commit"][0]
    if not re.fullmatch(r"[0-9a-f]{7,40}", commit):
        refuse(f"{commit} is not a commit without changes; commit, and run all rows again")
    return rows, {name: value for name, (value, _) in stated.items()}


def number(value):
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def spread(values, unit):
    shown = number(median(values))
    if len(values) > 1:
        shown += f" ({number(min(values))} to {number(max(values))})"
    return f"{shown} {unit}".strip()


def lines(name, runs):
    """The rows of one benchmark; its figures are those of its first run."""
    for place, first in enumerate(runs[0]["checks"]):
        checks = [run["checks"][place] for run in runs if len(run["checks"]) > place]
        if any(check["figure"] != first["figure"] for check in checks) or len(checks) < len(runs):
            refuse(f"the runs of {name} have different figures; run it again")
        passed = [check["pass"] for check in checks]
        kept = "" if None in passed else "yes" if all(passed) else f"no, {sum(passed)} of {len(passed)}" if any(passed) else "no"
        beside, ratio = "", ""
        if first["peer"] is not None:
            beside = f"{first['peer_name']} {spread([check['peer'] for check in checks], first['unit'])}"
            ratio = number(median(check["ratio"] for check in checks))
        headgate = spread([check["value"] for check in checks], first["unit"])
        yield f"| `{name}`: {first['figure']} | {first['budget'] or '–'} | {headgate} | {beside} | {ratio} | {kept} |"


def program(row):
    """Whose benchmark the row is one of; its table is named so."""
    return "leader" if row.startswith("leader-") else "agent"


def tables(directory, wanted):
    """The tables by their names."""
    rows, conditions = results(directory)
    return {
        name: table({row: runs for row, runs in rows.items() if program(row) == name}, conditions, wanted)
        for name in sorted({program(row) for row in rows})
    }


def table(rows, conditions, wanted):
    for name, runs in rows.items():
        if len(runs) != wanted:
            refuse(f"{name} ran {len(runs)} times, and not {wanted}")
    loads = [float(run["conditions"]["loadAverage"]) for runs in rows.values() for run in runs]
    text = [
        f"{wanted} runs of commit {conditions['commit']}, profile {conditions['profile']}, Linux {conditions['kernel']}, "
        f"{conditions['cores']} cores ({conditions['processor']}), load average {number(min(loads))} to {number(max(loads))}. "
        "Median, and in parentheses the range of the runs.",
        "",
        "| what | budget | headgate | beside it | ratio | within |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in rows.items():
        text.extend(lines(name, runs))
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    made = tables(arguments.directory, arguments.runs)
    if arguments.write is None:
        sys.stdout.write("\n".join(made.values()))
        return
    text = arguments.write.read_text(encoding="utf-8")
    for name, new in made.items():
        before, begin, rest = text.partition(BEGIN.format(name))
        _, end, after = rest.partition(END)
        if not end:
            refuse(f"{arguments.write} does not have the marks {BEGIN.format(name).strip()} and {END}")
        text = before + begin + "\n" + new + "\n" + end + after
    arguments.write.write_text(text, encoding="utf-8")


main()
