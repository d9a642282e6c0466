"""Prints the lines of Rust code, without comments and blank lines: of the product, of the lab, and of tests and benchmarks.

With `coverage LCOV JSON`, two reports of cargo-llvm-cov, prints instead how much of each crate's own lines and regions ran, and of the lines
of the files that .cargo/mutants.toml counts as decisions; fails where it is less than 90 % of them.

Tests are files below `tests` and `benches`, files named for tests, and items under `#[cfg(test)]` with the files of their modules.
"""

import json
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

# Of the lines of decisions.
WANTED_PERCENT = 90

TOKEN = re.compile(
    r"""
      (?P<comment> //[^\n]* | /\*.*?\*/ )
    | (?<!\w)(?:b|c)?r(?P<hashes>\#*)".*?"(?P=hashes)
    | "(?:\\.|[^"\\])*"
    | '(?:\\[^']*|[^'\\])'
    """,
    re.DOTALL | re.VERBOSE,
)


def masked(source):
    """The lines of a source without comments, and with a letter for each line of a text."""

    def mask(token):
        lines = token[0].count("\n") + 1
        return "\n".join(["" if token["comment"] else "S"] * lines)

    return TOKEN.sub(mask, source).split("\n")


def end_of_item(lines, start):
    """The line in which the item ends that begins with an attribute in line `start`."""
    depth, has_body = 0, False
    for number in range(start, len(lines)):
        line = re.sub(r"^\s*#\[cfg\([^\]]*\)\]", "", lines[number]) if number == start else lines[number]
        for character in line:
            if character in "{([":
                depth += 1
                has_body = has_body or character == "{"
            elif character in "})]":
                depth -= 1
                if character == "}" and depth == 0 and has_body:
                    return number
            elif character == ";" and depth == 0:
                return number
    return len(lines) - 1


def test_lines(lines):
    """The numbers of lines that are compiled for tests only."""
    found, number = set(), 0
    while number < len(lines):
        if re.match(r"\s*#\[cfg\((all\()?test", lines[number]):
            end = end_of_item(lines, number)
            found.update(range(number, end + 1))
            number = end
        number += 1
    return found


def classified(root):
    """For each file its lines without comments, and a function that says whether a line, counted from 0, is a test's."""
    parts = ("benches", "crates", "lab", "src", "tests")
    found = [root / "build.rs", *(file for part in parts for file in sorted((root / part).rglob("*.rs")))]
    files = [file.relative_to(root) for file in found]
    sources = {file: masked((root / file).read_text(encoding="utf-8")) for file in files}
    tests = {file: test_lines(lines) for file, lines in sources.items()}
    modules = set()
    for file, numbers in tests.items():
        above = file.parent if file.name in ("lib.rs", "main.rs") else file.with_suffix("")
        for number in numbers:
            modules.update(above / name for name in re.findall(r"\bmod (\w+);", sources[file][number]))

    def is_test(file, number):
        by_place = {"tests", "benches"} & set(file.parts[:-1]) or re.search(r"(^|_)tests?$", file.stem)
        return bool(by_place or modules & {file.with_suffix(""), *file.parents} or number in tests[file])

    return sources, is_test


def print_sizes(root):
    sources, is_test = classified(root)
    counted = Counter()
    for file, lines in sources.items():
        part = "lab" if file.parts[0] == "lab" else "product"
        for number, line in enumerate(lines):
            if line.strip():
                counted["tests" if is_test(file, number) else part] += 1
    for part in ("product", "lab", "tests"):
        print(f"{part:8}{counted[part]:7}")


def decisions(root):
    """The files whose decisions `make mutants` changes."""

    def expanded(pattern):
        before, brace, rest = pattern.partition("{")
        inside, _, after = rest.partition("}")
        return (one for choice in inside.split(",") for one in expanded(before + choice + after)) if brace else [pattern]

    globs = tomllib.loads((root / ".cargo/mutants.toml").read_text(encoding="utf-8"))["examine_globs"]
    return {path.relative_to(root) for pattern in globs for one in expanded(pattern) for path in root.glob(one)}


def print_coverage(root, lcov, report):
    sources, is_test = classified(root)
    deciding = decisions(root)
    counts = {"lines": {}, "regions": {}, "decisions": {}}

    def seen(kind, path, line, place, count):
        file = Path(path)
        file = file.relative_to(root) if file.is_relative_to(root) else file
        if file in sources and file.parts[0] == "crates" and not is_test(file, line - 1):
            crate = counts[kind].setdefault(file.parts[1], {})
            crate[file, place] = max(count, crate.get((file, place), 0))

    path = ""
    for record in Path(lcov).read_text(encoding="utf-8").splitlines():
        name, _, value = record.partition(":")
        if name == "SF":
            path = value
        elif name == "DA":
            line, count = map(int, value.split(",")[:2])
            seen("lines", path, line, line, count)
            if Path(path).is_relative_to(root) and Path(path).relative_to(root) in deciding:
                seen("decisions", path, line, line, count)
    for function in json.loads(Path(report).read_text(encoding="utf-8"))["data"][0]["functions"]:
        for *place, count, file, _, kind in function["regions"]:
            if kind == 0:  # code; others are gaps, skipped lines and expansions of macros
                seen("regions", function["filenames"][file], place[0], tuple(place), count)

    print(f"{'crate':14}{'lines':>8}{'ran':>8}{'regions':>9}{'ran':>8}{'decisions':>11}{'ran':>8}")
    is_enough = bool(counts["decisions"])
    for crate in sorted(counts["lines"]):
        row = f"{crate:14}"
        for kind, width in (("lines", 8), ("regions", 9), ("decisions", 11)):
            of_crate = counts[kind].get(crate, {})
            ran = sum(count > 0 for count in of_crate.values())
            percent = 100 * ran / max(len(of_crate), 1)
            is_enough &= kind != "decisions" or not of_crate or percent >= WANTED_PERCENT
            row += f"{len(of_crate):{width}}{percent:6.1f} %"
        print(row)
    if not is_enough:
        sys.exit(f"coverage: less than {WANTED_PERCENT} % of a crate's lines of decisions ran")


if sys.argv[1:2] == ["coverage"]:
    print_coverage(Path(__file__).resolve().parent.parent, *sys.argv[2:])
else:
    print_sizes(Path(__file__).parent.parent)
