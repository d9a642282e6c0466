"""Compares what kube-score and checkov find in the rendered chart with accepted.txt."""

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHART = HERE.parent.parent / "charts" / "headgate"
# Checkov would wait for answers of its makers' service; nothing answers on this port.
NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "", "BC_SKIP_MAPPING": "TRUE"}


def output(command: list[str], codes: tuple[int, ...], start: str = "", **environment: str) -> str:
    """What a program prints, which must end with one of these exit codes, and begin so."""
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    if ran.returncode not in codes or not ran.stdout.startswith(start):
        sys.exit(f"{command[0]} ended with {ran.returncode}: {ran.stderr}{ran.stdout}")
    return ran.stdout


def kube_score(program: str, file: Path) -> set[tuple[str, str, str]]:
    """The tool, the check and the object or container of each finding."""
    # A missing CPU limit hides no other: checkov's CKV_K8S_11 is about that alone.
    command = [program, "score", "--kubernetes-version", "v1.30", "--ignore-container-cpu-limit", "--output-format", "json", str(file)]
    found = set()
    for scored in json.loads(output(command, (0, 1), "[")):
        kind = scored["type_meta"]["kind"]
        metadata = scored["object_meta"]
        place = f"{kind}/{metadata.get('namespace', '')}/{metadata['name']}"
        for check in scored["checks"]:
            if not check["skipped"] and check["grade"] < 10:
                paths = {comment["path"] for comment in check["comments"] or []} or {""}
                found |= {("kube-score", check["check"]["id"], f"{place}/{path}".rstrip("/")) for path in paths}
    return found


def checkov(program: str, file: Path) -> set[tuple[str, str, str]]:
    """The same of checkov."""
    command = [program, "--file", str(file), "--framework", "kubernetes", "--compact", "--quiet", "--skip-download", "--output", "json"]
    found = set()
    for check in json.loads(output(command, (0, 1), "{", **NOWHERE))["results"]["failed_checks"]:
        kind, namespace, name = check["resource"].split(".", 2)
        # Of pods that it takes from a template it names all labels.
        name = name.split(".")[0]
        found.add(("checkov", check["check_id"], f"{kind}/{namespace}/{name}"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    for flag in ("--helm", "--kube-score"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--checkov")
    arguments = parser.parse_args()

    lines = [line for line in (HERE / "accepted.txt").read_text().splitlines() if line and not line.startswith("#")]
    accepted = [tuple(line.split(maxsplit=3)) for line in lines]
    used, unexpected, tools = set(), set(), {"kube-score"}
    for values in sorted((CHART / "ci").glob("*-values.yaml")):
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "rendered.yaml"
            template = [arguments.helm, "template", "headgate", str(CHART), "--namespace", "kube-system", "--values", str(values)]
            file.write_text(output(template, (0,), HELM_CACHE_HOME=directory))
            found = kube_score(arguments.kube_score, file)
            if arguments.checkov:
                tools.add("checkov")
                found |= checkov(arguments.checkov, file)
        for tool, check, place in found:
            matching = [entry for entry in accepted if entry[:2] == (tool, check) and fnmatch.fnmatch(place, entry[2])]
            used.update(matching)
            if not matching:
                unexpected.add(f"{tool} {check} {place} in {values.name}")
    unused = [entry for entry in accepted if entry[0] in tools and entry not in used]
    for text in sorted(unexpected):
        print(f"not in accepted.txt: {text}")
    for entry in unused:
        print(f"in accepted.txt, and not found: {' '.join(entry[:3])}")
    return 1 if unexpected or unused else 0


if __name__ == "__main__":
    sys.exit(main())
