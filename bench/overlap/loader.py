"""Loads a video as Hugging Face's transformers does, one frame a second, to see what that holds in memory."""

import argparse
import os
import resource
import sys
import threading
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("video")
parser.add_argument("--limit", type=float, help="GiB of resident memory at which it is stopped")
arguments = parser.parse_args()

from transformers.video_utils import load_video  # noqa: E402


def watch():
    while True:
        with open("/proc/self/statm") as status:
            held = int(status.read().split()[1]) * resource.getpagesize()
        if held > arguments.limit * 2**30:
            print(f"stopped at {arguments.limit:g} GiB", file=sys.stderr, flush=True)
            os._exit(3)
        time.sleep(0.02)


if arguments.limit:
    threading.Thread(target=watch, daemon=True).start()
print(len(load_video(arguments.video, fps=1, backend="pyav")[0]))
