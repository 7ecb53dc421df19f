#!/usr/bin/env python3
"""Many clients ask `kinora serve` about a few videos at the same time.

    bench/serve/load.py PROGRAM [--clients 64] [--videos 8] [--seconds 120] [-m MODEL] [--json FILE]

Makes the videos with ffmpeg, starts the server, and prints: answers, refusals by status, seconds to
the first token (50th and 99th percentile), tokens per second of one conversation alone and of eight
at once, how much sooner a second conversation about a known video begins, and the server's memory
before and after. Any answer but 200, 429 and 503 is a failure.
"""
import argparse
import collections
import http.client
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("-m", "--model", default="kinora-tiny")
parser.add_argument("--clients", type=int, default=64)
parser.add_argument("--videos", type=int, default=8)
parser.add_argument("--seconds", type=float, default=120)
parser.add_argument("--frames", type=int, default=16, help="looked at of every video")
parser.add_argument("--tokens", type=int, default=32, help="of every answer")
parser.add_argument("--json", help="where to write the figures")
arguments = parser.parse_args()


def resident(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) / 1024


def ask(port, video, question, tokens):
    """Status, seconds to the first token, tokens, seconds from the first token to the last."""
    body = {"messages": [{"role": "user", "content": [{"type": "video_url", "uuid": video},
                                                      {"type": "text", "text": question}]}],
            "max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True},
            "mm_processor_kwargs": {"num_frames": arguments.frames}}
    begin = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        retry = float(response.headers.get("Retry-After", 1))
        text = response.read()
        if response.status not in (429, 503):
            print(text.decode(errors="replace"), file=sys.stderr)
        return response.status, retry, 0, 0
    first, made = None, 0
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            return 0, 0, 0, 0
        if first is None:
            first = time.monotonic()
        if event.get("usage"):
            made = event["usage"]["completion_tokens"]
    end = time.monotonic()
    connection.close()
    return 200, (first or end) - begin, made, end - (first or end)


def rate(port, video, conversations, tokens):
    """Tokens per second of so many conversations at once."""
    made = []
    threads = [threading.Thread(target=lambda i=i: made.append(ask(port, video, f"Tell me all, in {i} ways.", tokens)))
               for i in range(conversations)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(result[2] for result in made) / (time.monotonic() - begin)


def share(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


with tempfile.TemporaryDirectory() as folder:
    server = subprocess.Popen([arguments.program, "serve", "-m", arguments.model, "--port", "0", "--data", folder,
                               "--quiet", "--max-running", "32"], stdout=subprocess.PIPE, text=True)
    port = int(re.search(r":(\d+)/", server.stdout.readline()).group(1))
    ids, first_times = [], []
    for number in range(arguments.videos):
        path = pathlib.Path(folder) / f"{number}.mp4"
        subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-f", "lavfi", "-i",
                        f"testsrc2=size=320x240:rate=10:duration={20 + number}", "-pix_fmt", "yuv420p", str(path)],
                       check=True)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        connection.request("POST", f"/v1/videos?name={number}.mp4", path.read_bytes(), {"Content-Type": "video/mp4"})
        ids.append(json.loads(connection.getresponse().read())["id"])
    sooner = [ask(port, ids[0], question, 4)[1] for question in ("What is it?", "What else?", "And what is that?")]
    alone = rate(port, ids[0], 1, 4 * arguments.tokens)
    together = rate(port, ids[0], 8, 4 * arguments.tokens)

    statuses, firsts, answered, lock = collections.Counter(), [], collections.Counter(), threading.Lock()
    end = time.monotonic() + arguments.seconds
    before = resident(server.pid)

    def client(number):
        luck = random.Random(number)
        while time.monotonic() < end:
            status, first, _, _ = ask(port, ids[luck.randrange(len(ids))], f"What happens at {luck.randrange(20)} s?",
                                      arguments.tokens)
            with lock:
                statuses[status] += 1
                if status == 200:
                    firsts.append(first)
                    answered[number] += 1
            if status in (429, 503):
                time.sleep(min(first, 5))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(arguments.clients)]
    for thread in threads:
        thread.start()
    middle = []
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.5)
        middle.append(resident(server.pid))
    after = resident(server.pid)
    server.terminate()
    code = server.wait(timeout=60)

result = {
    "clients": arguments.clients, "videos": arguments.videos, "seconds": arguments.seconds, "model": arguments.model,
    "answers": statuses[200], "refused": {str(key): value for key, value in statuses.items() if key != 200},
    "first_token_p50": round(share(firsts, 0.5), 3), "first_token_p99": round(share(firsts, 0.99), 3),
    "first_of_a_video": round(sooner[0], 3), "second_of_a_video": round(min(sooner[1:]), 3),
    "tokens_per_second_alone": round(alone, 1), "tokens_per_second_of_eight": round(together, 1),
    "memory_before": round(before), "memory_most": round(max(middle, default=before)), "memory_after": round(after),
    "answers_of_the_slowest_client": min((answered[i] for i in range(arguments.clients)), default=0),
    "answers_of_the_fastest_client": max(answered.values(), default=0),
    "exit": code}
for name, value in result.items():
    print(f"{name:32} {value}")
if arguments.json:
    pathlib.Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")
sys.exit(0 if code == 0 and not set(statuses) - {200, 429, 503} else 1)
