#!/usr/bin/env python3
"""How much sooner a second conversation about a known video begins, and what it adds to memory.

    bench/serve/again.py PROGRAM [-m MODEL] [--frames 64] [--video-seconds 60] [--conversations 20] [--json FILE]

The first question waits for the video to be decoded, encoded and prefilled; the others are conversations of their
own about the same video. Exits with 1 where they do not begin ten times as soon, or where the rows of the video are
not held once. That is judged twice: by the blocks of rows that conversations hold together, as the memories count
them, of which each must read all that the first one read; and from outside, by the resident memory of the process,
which all later conversations together may raise by half of what copies of the rows would take.
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
parser.add_argument("--conversations", type=int, default=20)
parser.add_argument("--json", help="where to write the figures")
arguments = parser.parse_args()


def ask(server, video, question):
    said = server.ask(video, question, 4, arguments.frames)
    if said["status"] != 200:
        sys.exit(f"a question was answered with status {said['status']}")
    return first_token(said)


with Server(arguments.program, arguments.model) as server:
    warm = server.upload(2, number=1)
    server.ask(warm, "Is anybody there?", 4, 4)  # what a process does once is not the video's
    video = server.upload(arguments.video_seconds)
    before = server.kv_bytes()
    shared_before = server.metric("kinora_kv_bytes_shared")
    first = ask(server, video, "What happens in this video?")
    ask(server, video, "What happens in the end?")  # nor is what a process does at the second question
    rows = server.kv_bytes() - before
    resident = server.resident()
    later = [ask(server, video, f"What happens at {n} seconds?") for n in range(arguments.conversations)]
    each = (server.kv_bytes() - before - rows) / arguments.conversations
    grown = (server.resident() - resident) * 2**20
    shared = (server.metric("kinora_kv_bytes_shared") - shared_before) / (arguments.conversations + 2)
    code = server.stop()

sooner = first / statistics.median(later)
result = {"model": arguments.model, "frames": arguments.frames, "conversations": arguments.conversations,
          "first_conversation_ms": round(1000 * first, 1),
          "later_conversation_ms": round(1000 * statistics.median(later), 1), "times_sooner": round(sooner, 1),
          "bytes_of_the_video": round(rows), "bytes_of_each_later": round(each), "bytes_each_shares": round(shared),
          "resident_bytes_of_all_later": round(grown), "copies_would_take": round(rows * arguments.conversations),
          "exit": code}
for name, value in result.items():
    print(f"{name:32} {value}")
if arguments.json:
    pathlib.Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")
problems = [words for wrong, words in (
    (code != 0, f"the server ended with {code}"),
    (not sooner >= 10, f"later conversations begin only {sooner:.1f} times as soon"),
    (not shared >= 0.8 * rows, f"a conversation shares {shared:.0f} bytes of the {rows:.0f} of the video"),
    (not grown <= 0.5 * rows * arguments.conversations,
     f"later conversations take {grown / 2**20:.0f} MiB, as if each held rows of its own")) if wrong]
for problem in problems:
    print(problem, file=sys.stderr)
sys.exit(1 if problems else 0)
