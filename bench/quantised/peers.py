#!/usr/bin/env python3
"""kinora and llama.cpp on the same published model in 8 and 4 bits, in turns: tokens a second of prefill and decoding, memory, perplexity.

    bench/quantised/peers.py --gguf PUBLISHED.gguf --int8 DIR --int4 DIR --text TEXT --work FOLDER [--threads 2] [--rounds 5] [--tokens 2048]

`kinora quantize` makes the directories from the weights of the same GGUF file. llama.cpp is llama-cpp-python, which pip compiles for this CPU
(half an hour on two cores); --python names the Python that has it, and LLAMA_CPP_LIB_PATH where its libraries are, if they are elsewhere. A
Q8_0 file is made of the GGUF file by llama.cpp itself and stays in FOLDER. Every measurement is a process of its own. Prints one Markdown
table: medians with the lowest and the highest of the rounds; shares are of the speed of reading memory, which kinora's side measures in the
same run.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time


def make_q8(source, target):
    import llama_cpp
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
    parameters.allow_requantize = True
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), parameters) != 0:
        sys.exit(f"llama.cpp could not make {target}")


def peak_gigabytes():
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024 / 1e9
    return 0.0


def llama(a):
    """One round of llama.cpp, or its perplexity, as a line of JSON."""
    import numpy
    from llama_cpp import Llama
    context = a.window if a.perplexity else a.prompt + a.decode + 8
    engine = Llama(model_path=a.llama, n_threads=a.threads, n_threads_batch=a.threads, n_ctx=context, n_batch=512, n_ubatch=512,
                   logits_all=a.perplexity, verbose=False)
    ids = engine.tokenize(pathlib.Path(a.text).read_bytes(), add_bos=False)
    if a.perplexity:
        lost, count = 0.0, 0
        for begin in range(0, min(len(ids), a.tokens) - 1, a.window):
            part = ids[begin: min(begin + a.window, a.tokens)]
            engine.reset()
            engine.eval(part)
            for i in range(len(part) - 1):
                logits = engine.scores[i].astype(numpy.float64)
                largest = logits.max()
                lost += numpy.log(numpy.exp(logits - largest).sum()) + largest - logits[part[i + 1]]
                count += 1
        print(json.dumps({"perplexity": float(numpy.exp(lost / count))}))
        return
    prompt = ids[: a.prompt]
    engine.eval(prompt[:8])  # the first pass reads the file
    engine.reset()
    begin = time.perf_counter()
    engine.eval(prompt)
    middle = time.perf_counter()
    for _ in range(a.decode):
        engine.eval([engine.sample(temp=0.0)])
    end = time.perf_counter()
    print(json.dumps({"prefill": len(prompt) / (middle - begin), "decode": a.decode / (end - middle), "memory": peak_gigabytes(),
                      "size": pathlib.Path(a.llama).stat().st_size / 1e9}))


def shared(a):
    return ["--text", a.text, "--prompt", str(a.prompt), "--decode", str(a.decode), "--threads", str(a.threads), "--window", str(a.window)]


def run_llama(a, path, perplexity):
    command = [a.python, __file__, "--llama", path, *shared(a), "--tokens", str(a.tokens)] + ["--perplexity"] * perplexity
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def run_kinora(a, directory, perplexity):
    tokens, rounds = (a.tokens, 0) if perplexity else (0, 1)
    command = [a.bench, directory, *shared(a), "--tokens", str(tokens), "--rounds", str(rounds)]
    figure = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    if perplexity:
        return figure
    speed = figure["decode_tokens_per_second"]
    limit = speed * figure["token_gigabytes"] / figure["decode_share_of_memory"]
    return {"prefill": figure["prefill_tokens_per_second"], "decode": speed, "memory": figure["peak_gigabytes"],
            "size": figure["token_gigabytes"], "limit": limit}


def spread(values, form):
    return f"{statistics.median(values):{form}} ({min(values):{form}} … {max(values):{form}})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", help="the published file, in 4 bits")
    parser.add_argument("--int8")
    parser.add_argument("--int4")
    parser.add_argument("--text", required=True)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--bench", default="build/release/bench/quantised/bench_quantised")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=2048, help="of the text for the perplexity; 0: none")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--llama", help=argparse.SUPPRESS)
    parser.add_argument("--make", help=argparse.SUPPRESS)
    parser.add_argument("--perplexity", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.make:
        return make_q8(a.gguf, a.make)
    if a.llama:
        return llama(a)
    names = []
    if a.gguf:
        eight = a.work / "q8_0.gguf"
        if not eight.exists():
            subprocess.run([a.python, __file__, "--gguf", a.gguf, "--make", str(eight), "--text", a.text], check=True)
        names.append(("llama.cpp, Q8_0", str(eight), run_llama))
    if a.int8:
        names.append(("kinora, int8", a.int8, run_kinora))
    if a.gguf:
        names.append(("llama.cpp, the published 4 bits", a.gguf, run_llama))
    if a.int4:
        names.append(("kinora, int4", a.int4, run_kinora))
    figures = {name: [] for name, _, _ in names}
    for _ in range(a.rounds):
        for name, path, measure in names:
            figures[name].append(measure(a, path, False))
    limits = [figure["limit"] for rows in figures.values() for figure in rows if "limit" in figure]
    limit = statistics.median(limits) if limits else 0
    print(f"Reading memory: {limit:.1f} GB/s, {a.threads} threads\n")
    print("| engine | GB a token (llama.cpp: of the file) | memory, peak, GB | prefill, tokens/s | decode, tokens/s | share of memory's speed | perplexity |")
    print("|---|---|---|---|---|---|---|")
    for name, path, measure in names:
        size, memory, prefill, decode = ([figure[key] for figure in figures[name]] for key in ("size", "memory", "prefill", "decode"))
        share = f"{100 * statistics.median(decode) * size[0] / limit:.0f} %" if limit else "–"
        perplexity = f"{measure(a, path, True)['perplexity']:.3f}" if a.tokens else "–"
        print(f"| {name} | {size[0]:.2f} | {statistics.median(memory):.2f} | {spread(prefill, '.0f')} | {spread(decode, '.1f')} | {share} | {perplexity} |",
              flush=True)


main()
