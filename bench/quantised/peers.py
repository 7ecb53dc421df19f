#!/usr/bin/env python3
"""kinora and llama.cpp on the same published model in 8 and 4 bits, in turns: tokens a second of prefill and decoding.

    bench/quantised/peers.py --gguf8 Q8_0.gguf --gguf4 Q4_K_M.gguf --int8 DIR --int4 DIR --text TEXT [--threads 2] [--rounds 3]

Needs llama-cpp-python (its wheel is compiled by pip; ten minutes on two cores). `kinora quantize` makes the directories. Prints one
Markdown table; shares are of the speed of reading memory, which kinora's side measures in the same run.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import time


class Llama:
    def __init__(self, path, threads, context):
        from llama_cpp import Llama as Engine
        self.engine = Engine(model_path=path, n_threads=threads, n_threads_batch=threads, n_ctx=context, n_batch=512, verbose=False)
        self.gigabytes = pathlib.Path(path).stat().st_size / 1e9

    def measure(self, text, prompt, decode):
        ids = self.engine.tokenize(text.encode())[:prompt]
        self.engine.reset()
        begin = time.perf_counter()
        self.engine.eval(ids)
        middle = time.perf_counter()
        for _ in range(decode):
            self.engine.eval([self.engine.sample(temp=0.0)])
        return len(ids) / (middle - begin), decode / (time.perf_counter() - middle)


def kinora(a, directory):
    command = [a.bench, directory, "--text", a.text, "--tokens", "0", "--rounds", "1", "--prompt", str(a.prompt), "--decode", str(a.decode),
               "--threads", str(a.threads)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("gguf8", "gguf4", "int8", "int4"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--text", required=True)
    parser.add_argument("--bench", default="build/release/bench/quantised/bench_quantised")
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    text = pathlib.Path(a.text).read_text(encoding="utf-8")
    names = [("llama.cpp, 8 bits", a.gguf8), ("kinora, int8", a.int8), ("llama.cpp, 4 bits", a.gguf4), ("kinora, int4", a.int4)]
    figures = {name: [] for name, path in names if path}
    limits, sizes = [], {}
    for _ in range(a.rounds):
        for name, path in names:
            if not path:
                continue
            if name.startswith("kinora"):
                figure = kinora(a, path)
                sizes[name] = figure["token_gigabytes"]
                speed = figure["decode_tokens_per_second"]
                limits.append(speed * sizes[name] / figure["decode_share_of_memory"])
                figures[name].append((figure["prefill_tokens_per_second"], speed))
            else:
                engine = Llama(path, a.threads, a.prompt + a.decode + 8)
                sizes[name] = engine.gigabytes
                figures[name].append(engine.measure(text, a.prompt, a.decode))
                del engine
    limit = statistics.median(limits) if limits else 0
    print(f"Reading memory: {limit:.1f} GB/s, {a.threads} threads\n")
    print("| engine | GB a token | prefill, tokens/s | decode, tokens/s | share of memory's speed |\n|---|---|---|---|---|")
    for name, rows in figures.items():
        prefill, decode = (statistics.median(column) for column in zip(*rows))
        share = f"{100 * decode * sizes[name] / limit:.0f} %" if limit else "–"
        print(f"| {name} | {sizes[name]:.2f} | {prefill:.0f} | {decode:.1f} | {share} |")


main()
