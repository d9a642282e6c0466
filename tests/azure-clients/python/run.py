"""Microsoft's Python client against the emulator: scenarios of steps with assertions.

    run.py --addresses FILE --ca-file FILE [--tls] SCENARIO
"""

import argparse
import json
import logging
import os
import sys
import time
import traceback
from pathlib import Path

import credentials
import errors
import interfaces
import operations
import reading
import throttling
import writing
from world import World

SCENARIOS = {
    module.__name__: module.STEPS
    for module in (reading, writing, operations, errors, throttling, credentials, interfaces)
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--addresses", type=Path, required=True, help="the emulator's addresses file")
    parser.add_argument("--ca-file", required=True, help="the emulator's CA")
    parser.add_argument("--tls", action="store_true", help="use TLS for ARM")
    parser.add_argument("scenario", choices=SCENARIOS)
    arguments = parser.parse_args()

    addresses = json.loads(arguments.addresses.read_text())
    # The address at which azure-identity requests the machine's managed identity.
    os.environ["AZURE_POD_IDENTITY_AUTHORITY_HOST"] = f"http://{addresses['arm']}"
    logging.disable(logging.WARNING)  # azure-identity warns of refusals, which some steps expect
    world = World(addresses, arguments.ca_file, arguments.tls)
    for step in SCENARIOS[arguments.scenario]:
        name = step.__name__.replace("_", " ")
        started = time.monotonic()
        try:
            step(world)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            print(f"FAILED: {arguments.scenario}: {name}")
            return 1
        print(f"ok: {arguments.scenario}: {name} ({time.monotonic() - started:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
