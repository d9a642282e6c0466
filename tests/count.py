"""Prints the lines of Rust code, without comments and blank lines: of the product, of the lab, and of tests and benchmarks.

Tests are files below `tests` and `benches`, files named for tests, and items under `#[cfg(test)]` with the files of their modules.
"""

import re
import subprocess
from collections import Counter
from pathlib import Path

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


def main():
    root = Path(__file__).parent.parent
    listed = subprocess.check_output(["git", "ls-files", "-z", "*.rs"], cwd=root, text=True)
    files = [Path(name) for name in listed.split("\0") if name]
    sources = {file: masked((root / file).read_text(encoding="utf-8")) for file in files}
    tests = {file: test_lines(lines) for file, lines in sources.items()}
    modules = set()
    for file, numbers in tests.items():
        above = file.parent if file.name in ("lib.rs", "main.rs") else file.with_suffix("")
        for number in numbers:
            modules.update(above / name for name in re.findall(r"\bmod (\w+);", sources[file][number]))

    def is_test(file):
        by_place = {"tests", "benches"} & set(file.parts[:-1]) or re.search(r"(^|_)tests?$", file.stem)
        return by_place or modules & {file.with_suffix(""), *file.parents}

    counted = Counter()
    for file, lines in sources.items():
        part = "lab" if file.parts[0] == "lab" else "product"
        for number, line in enumerate(lines):
            if line.strip():
                counted["tests" if is_test(file) or number in tests[file] else part] += 1
    for part in ("product", "lab", "tests"):
        print(f"{part:8}{counted[part]:7}")


main()
