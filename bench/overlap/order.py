#!/usr/bin/env python3
"""How far frames come out of order: reads traces that `--trace` wrote, of bench/overlap/run-gpu or of `kinora ask`.

    bench/overlap/order.py TRACE.json…

For each: when the last interval was decoded, how long an interval waited, on average, for those before it to be decoded
too, and how long after the last interval the first token came (the end of the last prefill).
"""

import argparse
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import result_table  # noqa: E402


def measure(path):
    events = json.load(open(path))["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [(lanes[event["tid"]], event["name"], 1e-6 * (event["ts"] + event["dur"])) for event in events if event["ph"] == "X"]
    decoded = {}  # an interval that had to wait has several spans
    for lane, name, end in spans:
        if lane.startswith("decode"):
            start = float(re.search(r"decode ([\d.]+) s", name)[1])
            decoded[start] = max(end, decoded.get(start, 0))
    before, waited = 0, 0
    for _, end in sorted(decoded.items()):
        before = max(before, end)
        waited += before - end
    first_token = max(end for lane, _, end in spans if lane == "prefill")
    return before, waited / len(decoded), first_token - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--json", type=pathlib.Path, metavar="FOLDER", help="also write the table there, for docs/results/import")
    arguments = parser.parse_args()
    rows = [[path.rsplit("/", 1)[-1], *(f"{value:.2f}" for value in measure(path))] for path in arguments.traces]
    table = result_table.measured("How far frames come out of order", ["trace", "last interval decoded, s", "an interval waited, s", "first token after it, s"],
                                  rows, "random")
    print(table.markdown(), end="")
    if arguments.json:
        table.save(arguments.json / "overlap-order.json")


if __name__ == "__main__":
    main()
