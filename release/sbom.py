"""Prints a CycloneDX document without the paths of the machine: python3 sbom.py FILE DIRECTORY.

DIRECTORY is where the sources were. In package URLs and references it becomes `.`, so that the document does not depend on it.
"""

import json
import sys
from pathlib import Path


def replaced(value, directory):
    """The value with `directory` replaced in every text."""
    if isinstance(value, dict):
        return {key: replaced(part, directory) for key, part in value.items()}
    if isinstance(value, list):
        return [replaced(part, directory) for part in value]
    if isinstance(value, str):
        return value.replace(f"file://{directory}", "file://.").replace(directory, ".")
    return value


def main():
    file, directory = Path(sys.argv[1]), sys.argv[2]
    document = json.loads(file.read_text(encoding="utf-8"))
    # A new one for each run; the digest in SHA256SUMS identifies the document.
    document.pop("serialNumber", None)
    json.dump(replaced(document, directory), sys.stdout, indent=2, sort_keys=True)
    print()


main()
