#!/usr/bin/env python3
"""The results of drills, from standard input, as one compact array without what happened when: the totals of each run."""

import json
import sys

arrays = json.loads("[" + sys.stdin.read().replace("]\n[", "],[") + "]")
runs = [run for array in arrays for run in array]
for run in runs:
    run["timeline"] = []
    del run["perSecond"], run["establishedLostAt"]
json.dump(runs, sys.stdout, separators=(",", ":"))
print()
