#!/usr/bin/env python3
"""Makes the evaluation sets of bench/accuracy/run, each video drawn and encoded once.

    bench/accuracy/make_sets.py DIR [--processes 8] [--only needle-1024 …] [--videos 1]

Needs PyTorch and an ffmpeg with libx264. A set that is there already is kept.
"""
import argparse
import os
import pathlib
import sys
import time

import plan

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from training.world import make_set  # noqa: E402


def prepare(folder, name, most, more):
    kind, length, videos, questions = (plan.SETS | plan.CALIBRATION)[name]
    seed = plan.CALIBRATION_SEED if name in plan.CALIBRATION else plan.SEED
    return make_set.prepare([kind, "--out", str(folder / name), "--lengths", str(length), "--videos", str(min(videos, most)),
                             "--wordings", str(plan.WORDINGS.get(name, 1)),
                             "--questions", str(max(1, questions)), "--seed", f"{seed}/{name}", *plan.MORE.get(name, ()), *more])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--videos", type=int, default=1 << 30, help="only the first N of each set")
    parser.add_argument("--only", nargs="+", choices=list(plan.SETS | plan.CALIBRATION))
    parser.add_argument("--codec", help="as make_set has it")
    parser.add_argument("--quality", help="as make_set has it")
    a = parser.parse_args()
    more = [word for flag in ("codec", "quality") if vars(a)[flag] for word in (f"--{flag}", vars(a)[flag])]
    began = time.time()
    names = [n for n in a.only or (plan.CALIBRATION | plan.SETS) if not (a.folder / n / "DATA.jsonl").exists()]
    writers = [prepare(a.folder.resolve(), n, a.videos, more) for n in names]
    jobs = [j for w in writers for j in w.jobs.values()]
    print(f"{time.time() - began:.1f} s: {len(jobs)} videos of {sum(j[1].frames for j in jobs)} frames to draw", flush=True)
    make_set.write_files(jobs, a.device, a.processes)
    for w in writers:
        w.close()
    print(f"{time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
