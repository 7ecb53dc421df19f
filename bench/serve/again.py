#!/usr/bin/env python3
"""How much sooner a second conversation about a known video begins, and what it adds to memory.

    bench/serve/again.py PROGRAM [-m MODEL] [--frames 64] [--video-seconds 60] [--conversations 5] [--json FILE]

The first question waits for the video to be decoded, encoded and prefilled; the others are conversations of their
own about the same video. Exits with 1 where they do not begin ten times as soon.
"""
import argparse
import json
import pathlib
import statistics
import sys

from server import Server, first_token

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("-m", "--model", default="kinora-tiny")
parser.add_argument("--frames", type=int, default=64)
parser.add_argument("--video-seconds", type=float, default=60)
parser.add_argument("--conversations", type=int, default=5)
parser.add_argument("--json", help="where to write the figures")
arguments = parser.parse_args()

with Server(arguments.program, arguments.model) as server:
    warm = server.upload(2, number=1)
    server.ask(warm, "Is anybody there?", 4, 4)  # what a process does once is not the video's
    video = server.upload(arguments.video_seconds)
    before = server.kv_bytes()
    first = first_token(server.ask(video, "What happens in this video?", 4, arguments.frames))
    one = server.kv_bytes() - before
    later = [first_token(server.ask(video, f"What happens at {n} seconds?", 4, arguments.frames))
             for n in range(arguments.conversations)]
    each = (server.kv_bytes() - before - one) / arguments.conversations
    code = server.stop()

result = {"model": arguments.model, "frames": arguments.frames, "first_conversation_ms": round(1000 * first, 1),
          "later_conversation_ms": round(1000 * statistics.median(later), 1),
          "times_sooner": round(first / statistics.median(later), 1), "bytes_of_the_first": round(one),
          "bytes_of_each_later": round(each), "exit": code}
for name, value in result.items():
    print(f"{name:32} {value}")
if arguments.json:
    pathlib.Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")
sys.exit(0 if code == 0 and result["times_sooner"] >= 10 else 1)
