#!/usr/bin/env python3
"""Many clients ask `kinora serve` about a few videos at the same time.

    bench/serve/load.py PROGRAM [--clients 64] [--videos 8] [--seconds 120] [--lengths 512] [-m MODEL] [--json FILE]

Makes the videos with ffmpeg, starts the server, and prints: answers, refusals by status, seconds to the first token
(50th and 99th percentile), tokens per second of one conversation alone and of eight at once, in turns, with the median
and quartiles of their ratio for every length of an answer that --lengths names (64,128,256,512), and the server's
memory.
The load comes in two halves: memory after the second is to be what it was after the first, or at most --growth percent
more. That, any answer but 200, 429 and 503, and a client that fails are failures, with exit code 1. --seconds 0 leaves
the load out.
"""
import argparse
import collections
import json
import pathlib
import random
import sys
import threading
import time
import traceback

from server import Server, first_token

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("-m", "--model", default="kinora-tiny")
parser.add_argument("--clients", type=int, default=64)
parser.add_argument("--videos", type=int, default=8)
parser.add_argument("--seconds", type=float, default=120)
parser.add_argument("--frames", type=int, default=16, help="looked at of every video")
parser.add_argument("--tokens", type=int, default=32, help="of every answer under load")
parser.add_argument("--lengths", default="512", help="tokens of answers of one conversation and of eight")
parser.add_argument("--rounds", type=int, default=5, help="of one conversation, eight, and one again")
parser.add_argument("--growth", type=float, default=5, help="percent that memory may grow by in the second half")
parser.add_argument("--json", help="where to write the figures")
arguments = parser.parse_args()
lengths = [int(one) for one in arguments.lengths.split(",") if one]
failures = []


def at_once(count, work):
    """Calls work(0), work(1) … each in a thread of its own. What one of them throws is a failure of the whole run."""
    def one(number):
        try:
            work(number)
        except Exception:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def rate(server, video, conversations, tokens):
    """Tokens per second of so many conversations at once. Answers come whole, so that this client costs nothing."""
    made = []
    begin = time.monotonic()
    at_once(conversations, lambda number: made.append(
        server.write(video, f"Tell me all, in {number} ways.", tokens, arguments.frames)))
    seconds = time.monotonic() - begin
    if failures or sum(made) != conversations * tokens:
        sys.exit("\n".join([*failures, f"{sum(made)} tokens of {conversations} answers of {tokens}"]))
    return sum(made) / seconds


def share(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("nan")  # nobody was answered, which is a failure


def eight_over_one(server, video, tokens):
    rounds = []
    for _ in range(arguments.rounds):
        before, together, behind = (rate(server, video, number, tokens) for number in (1, 8, 1))
        rounds.append(((before + behind) / 2, together, 2 * together / (before + behind)))
    alone, together, ratios = ([one[i] for one in rounds] for i in range(3))
    return {"tokens": tokens, "per_second_alone": round(share(alone, 0.5), 1),
            "per_second_of_eight": round(share(together, 0.5), 1),
            "eight_over_one": {name: round(share(ratios, part), 2)
                               for name, part in (("median", 0.5), ("low", 0.25), ("high", 0.75))}}


def load(server, ids, seconds, statuses, firsts, answered):
    lock, end = threading.Lock(), time.monotonic() + seconds

    def client(number):
        luck = random.Random(number)
        while time.monotonic() < end:
            said = server.ask(ids[luck.randrange(len(ids))], f"What happens at {luck.randrange(20)} s?",
                              arguments.tokens, arguments.frames)
            with lock:
                statuses[said["status"]] += 1
                if said["status"] == 200:
                    firsts.append(first_token(said))
                    answered[number] += 1
            if said["status"] in (429, 503):
                time.sleep(min(said["retry"], 5))

    at_once(arguments.clients, client)


with Server(arguments.program, arguments.model, "--max-running", "32") as server:
    ids = [server.upload(20 + number, number=number) for number in range(arguments.videos)]
    for video in ids:
        server.ask(video, "What is it?", 4, arguments.frames)
    sessions = [eight_over_one(server, ids[0], tokens) for tokens in lengths]
    statuses, firsts, answered = collections.Counter(), [], collections.Counter()
    middle = after = 0
    if arguments.seconds > 0:
        load(server, ids, arguments.seconds / 2, statuses, firsts, answered)
        middle = server.resident()
        load(server, ids, arguments.seconds / 2, statuses, firsts, answered)
        after = server.resident()
    batch, largest = server.metric("kinora_decode_batch_mean"), server.metric("kinora_decode_batch_largest")
    code = server.stop()

if code != 0:
    failures.append(f"the server ended with {code}")
for status in set(statuses) - {200, 429, 503}:
    failures.append(f"{statuses[status]} answers with status {status}")
if arguments.seconds > 0 and not statuses[200]:
    failures.append("nobody was answered")
if after > middle * (1 + arguments.growth / 100):
    failures.append(f"memory grew from {middle:.0f} to {after:.0f} MiB, by more than {arguments.growth} %")
result = {"clients": arguments.clients, "videos": arguments.videos, "seconds": arguments.seconds, "model": arguments.model}
if arguments.seconds > 0:
    result |= {
        "answers": statuses[200], "refused": {str(key): value for key, value in statuses.items() if key != 200},
        "first_token_p50": round(share(firsts, 0.5), 3), "first_token_p99": round(share(firsts, 0.99), 3),
        "p99_over_p50": round(share(firsts, 0.99) / share(firsts, 0.5), 2),
        "batch_mean": round(batch, 2), "batch_largest": round(largest),
        "memory_after_half_mib": round(middle), "memory_after_all_mib": round(after),
        "answers_of_the_slowest_client": min((answered[i] for i in range(arguments.clients)), default=0),
        "answers_of_the_fastest_client": max(answered.values(), default=0)}
result |= {"sessions": sessions, "failures": len(failures), "exit": code}
for name, value in result.items():
    if name != "sessions":
        print(f"{name:32} {value}")
if sessions:
    print("\ntokens of an answer    tokens/s alone    of eight    eight over one (quartiles)")
for one in sessions:
    ratio = one["eight_over_one"]
    print(f"{one['tokens']:19}    {one['per_second_alone']:14}    {one['per_second_of_eight']:8}    "
          f"{ratio['median']:.2f} ({ratio['low']:.2f} … {ratio['high']:.2f})")
for failure in failures:
    print(failure.rstrip(), file=sys.stderr)
if arguments.json:
    pathlib.Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")
sys.exit(1 if failures else 0)
