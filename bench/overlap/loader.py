"""Loads a video as Hugging Face's transformers does, one frame a second, to see what that holds in memory."""

import argparse
import resource
import sys

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("video")
parser.add_argument("--limit", type=float, help="GiB of address space beyond what the imports took")
arguments = parser.parse_args()

from transformers.video_utils import load_video  # noqa: E402

if arguments.limit:
    with open("/proc/self/statm") as status:
        taken = int(status.read().split()[0]) * resource.getpagesize()
    limit = taken + int(arguments.limit * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    loaded = load_video(arguments.video, fps=1, backend="pyav")
except Exception as error:  # PyAV and NumPy name it differently
    if "memory" in str(error).lower() or isinstance(error, MemoryError):
        sys.exit(f"over {arguments.limit:g} GiB")
    raise
print(len(loaded[0]))
