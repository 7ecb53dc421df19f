#!/usr/bin/env python3
"""Makes the evaluation sets of bench/accuracy/run, each video drawn and encoded once.

    bench/accuracy/make_sets.py DIR [--processes 8] [--only needle-1024 …]

Needs PyTorch and an ffmpeg with libx264. A set that is there already is kept.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import time

import plan

ROOT = pathlib.Path(__file__).resolve().parents[2]


def make(folder, name, processes, device):
    kind, length, videos, questions = (plan.SETS | plan.CALIBRATION)[name]
    seed = plan.CALIBRATION_SEED if name in plan.CALIBRATION else plan.SEED
    command = [sys.executable, "-m", "training.world.make_set", kind, "--out", str(folder / name), "--lengths", str(length), "--videos", str(videos),
               "--questions", str(max(1, questions)), "--seed", f"{seed}/{name}", "--processes", str(processes), "--device", device]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", choices=list(plan.SETS | plan.CALIBRATION))
    a = parser.parse_args()
    for name in a.only or (plan.CALIBRATION | plan.SETS):
        began = time.time()
        if not (a.folder / name / "DATA.jsonl").exists():
            make(a.folder.resolve(), name, a.processes, a.device)
        print(f"{name}: {time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
