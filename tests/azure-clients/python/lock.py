"""Writes requirements.txt from requirements.in: every package that pip would install, with the hashes of its wheels.

Its argument is the directory of both files beside this one's, by default this one's. For each interpreter and machine, pip reports what it would install (`--dry-run --report`).
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent / (sys.argv[1] if len(sys.argv) > 1 else "python")
INTERPRETERS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
HEADER = "# Made by lock.py from requirements.in; the hashes are of the wheels for Python {} on {}.\n"


def report(interpreter: str, machine: str) -> list[dict]:
    """What pip would install for this interpreter on this machine."""
    with tempfile.TemporaryDirectory() as target:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--only-binary", ":all:", "--python-version", interpreter, "--target", target, "--report", "-"]
        for standard in ("manylinux_2_28", "manylinux_2_17", "manylinux2014"):
            command += ["--platform", f"{standard}_{machine}"]
        command += ["--requirement", str(HERE / "requirements.in")]
        # Only public wheels, none of this machine.
        environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return json.loads(answer.stdout)["install"]


def main() -> None:
    packages: dict[str, set[str]] = {}
    for interpreter in INTERPRETERS:
        for machine in MACHINES:
            for item in report(interpreter, machine):
                pin = f"{item['metadata']['name'].lower().replace('_', '-')}=={item['metadata']['version']}"
                packages.setdefault(pin, set()).add(item["download_info"]["archive_info"]["hashes"]["sha256"])
    names = [pin.split("==")[0] for pin in packages]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        sys.exit(f"other versions for other interpreters or machines: {', '.join(twice)}; pin them in requirements.in")

    text = HEADER.format(", ".join(INTERPRETERS), " and ".join(MACHINES))
    for pin, hashes in sorted(packages.items()):
        text += " \\\n    ".join([pin, *(f"--hash=sha256:{value}" for value in sorted(hashes))]) + "\n"
    (HERE / "requirements.txt").write_text(text)


if __name__ == "__main__":
    main()
