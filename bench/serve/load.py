#!/usr/bin/env python3
"""Many clients ask `kinora serve` about a few videos at the same time.

    bench/serve/load.py PROGRAM [--clients 64] [--videos 8] [--seconds 120] [-m MODEL] [--json FILE]

Makes the videos with ffmpeg, starts the server, and prints: answers, refusals by status, seconds to the first token
(50th and 99th percentile), tokens per second of one conversation alone and of eight at once, in turns, with the median
and quartiles of their ratio, and the server's memory.
The load comes in two halves: memory after the second is to be what it was after the first. Any answer but 200, 429
and 503 is a failure.
"""
import argparse
import collections
import json
import pathlib
import random
import sys
import threading
import time

from server import Server, first_token

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("-m", "--model", default="kinora-tiny")
parser.add_argument("--clients", type=int, default=64)
parser.add_argument("--videos", type=int, default=8)
parser.add_argument("--seconds", type=float, default=120)
parser.add_argument("--frames", type=int, default=16, help="looked at of every video")
parser.add_argument("--tokens", type=int, default=32, help="of every answer")
parser.add_argument("--rounds", type=int, default=5, help="of one conversation, eight, and one again")
parser.add_argument("--json", help="where to write the figures")
arguments = parser.parse_args()


def rate(server, video, conversations):
    """Tokens per second of so many conversations at once. Answers come whole, so that this client costs nothing."""
    made = []
    def one(number):
        made.append(server.write(video, f"Tell me all, in {number} ways.", 16 * arguments.tokens, arguments.frames))
    threads = [threading.Thread(target=one, args=(i,)) for i in range(conversations)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(made) / (time.monotonic() - begin)


def share(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


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

    threads = [threading.Thread(target=client, args=(i,)) for i in range(arguments.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


with Server(arguments.program, arguments.model, "--max-running", "32") as server:
    ids = [server.upload(20 + number, number=number) for number in range(arguments.videos)]
    for video in ids:
        server.ask(video, "What is it?", 4, arguments.frames)
    rounds = []
    for _ in range(arguments.rounds):
        before, together, behind = (rate(server, ids[0], number) for number in (1, 8, 1))
        rounds.append(((before + behind) / 2, together, 2 * together / (before + behind)))
    alone, together, ratios = ([one[i] for one in rounds] for i in range(3))
    statuses, firsts, answered = collections.Counter(), [], collections.Counter()
    load(server, ids, arguments.seconds / 2, statuses, firsts, answered)
    middle = server.resident()
    load(server, ids, arguments.seconds / 2, statuses, firsts, answered)
    after = server.resident()
    batch, largest = server.metric("kinora_decode_batch_mean"), server.metric("kinora_decode_batch_largest")
    code = server.stop()

result = {
    "clients": arguments.clients, "videos": arguments.videos, "seconds": arguments.seconds, "model": arguments.model,
    "answers": statuses[200], "refused": {str(key): value for key, value in statuses.items() if key != 200},
    "first_token_p50": round(share(firsts, 0.5), 3), "first_token_p99": round(share(firsts, 0.99), 3),
    "p99_over_p50": round(share(firsts, 0.99) / share(firsts, 0.5), 2),
    "tokens_per_second_alone": round(share(alone, 0.5), 1),
    "tokens_per_second_of_eight": round(share(together, 0.5), 1),
    "eight_over_one": {name: round(share(ratios, part), 2)
                       for name, part in (("median", 0.5), ("low", 0.25), ("high", 0.75))},
    "batch_mean": round(batch, 2), "batch_largest": round(largest),
    "memory_after_half_mib": round(middle), "memory_after_all_mib": round(after),
    "answers_of_the_slowest_client": min((answered[i] for i in range(arguments.clients)), default=0),
    "answers_of_the_fastest_client": max(answered.values(), default=0),
    "exit": code}
for name, value in result.items():
    print(f"{name:32} {value}")
if arguments.json:
    pathlib.Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")
sys.exit(0 if code == 0 and not set(statuses) - {200, 429, 503} else 1)
