#!/usr/bin/env python3
"""kinora and llama.cpp on the same published model in 8 and 4 bits, in turns: tokens a second of prefill and decoding, memory, perplexity.

    bench/quantised/peers.py --gguf PUBLISHED.gguf --int8 DIR --int4 DIR --text TEXT --work FOLDER [--threads 2] [--rounds 5] [--tokens 2048]
        [--int8-head DIR] [--int4-head DIR]

`kinora quantize` makes the directories from the weights of the same GGUF file, those of the last two with --head. llama.cpp is
llama-cpp-python, which pip compiles for this CPU (a quarter to half an hour on two cores); --python names the Python that has it and gguf, and
LLAMA_CPP_LIB_PATH where its libraries are, if they are elsewhere. A Q8_0 file is made of the GGUF file by llama.cpp itself and stays in FOLDER.
Both sides read the whole prompt in one batch, have read some tokens of it before, and take the most probable token of each step. Every
measurement is a process of its own, kept in FOLDER/measured.json: the same command over the same files goes on where it stopped, and
--seconds stops it between two rounds. Prints two Markdown tables: medians with the lowest and the highest of the rounds, with shares of
the speed of reading memory, which kinora's side measures in the same run; and kinora's speed over llama.cpp's, round by round, beside the
targets.
"""
import argparse
import hashlib
import json
import pathlib
import shutil
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


def bytes_a_token(path):
    """Of a GGUF file: what one token reads. Of embeddings that are not the head as well it is one row."""
    import gguf
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    return sum(sizes.values()) - (sizes["token_embd.weight"] if "output.weight" in sizes else 0)


def llama(a):
    """One round of llama.cpp, or its perplexity, as a line of JSON."""
    import llama_cpp
    import numpy
    context = a.window if a.perplexity else a.prompt + a.decode + 8
    engine = llama_cpp.Llama(model_path=a.llama, n_threads=a.threads, n_threads_batch=a.threads, n_ctx=context, n_batch=max(512, a.prompt),
                             n_ubatch=max(512, a.prompt), logits_all=a.perplexity, verbose=False)
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

    def best():  # of the logits as llama.cpp has them, past its samplers
        logits = llama_cpp.llama_get_logits_ith(engine.ctx, -1)
        return int(numpy.ctypeslib.as_array(logits, shape=(engine.n_vocab(),)).argmax())

    engine.eval(prompt[:8])  # the first pass reads the file
    best()
    engine.reset()
    begin = time.perf_counter()
    engine.eval(prompt)
    token = best()
    middle = time.perf_counter()
    for _ in range(a.decode):
        engine.eval([token])
        token = best()
    end = time.perf_counter()
    print(json.dumps({"prefill": len(prompt) / (middle - begin), "decode": a.decode / (end - middle), "memory": peak_gigabytes()}))


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


# kinora's column, whose speed it is over, and at least how many times.
TARGETS = [("kinora, int8", "llama.cpp, Q8_0", "decode", 1.0), ("kinora, int8, head in 8 bits", "llama.cpp, Q8_0", "decode", 1.0),
           ("kinora, int4", "llama.cpp, the published 4 bits", "decode", 1.5),
           ("kinora, int4, head in 8 bits", "llama.cpp, the published 4 bits", "decode", 1.5),
           *((f"kinora, {own}", f"llama.cpp, {other}", "prefill", 1.5)
             for own in ("int8", "int4") for other in ("Q8_0", "the published 4 bits"))]


def print_ratios(figures):
    print("\n| | over | | ratio | target | |")
    print("|---|---|---|---|---|---|")
    for own, other, kind, least in TARGETS:
        if own not in figures or other not in figures:
            continue
        ratios = [one[kind] / two[kind] for one, two in zip(figures[own], figures[other])]
        met = "met" if statistics.median(ratios) >= least else "missed"
        print(f"| {own} | {other} | {kind} | {spread(ratios, '.2f')} | {least} | {met} |")


def identity(path):
    """A file, or a directory with its files, as it is now: a change makes it another one."""
    path = pathlib.Path(path).resolve()
    parts = [path] if path.is_file() else sorted(part for part in path.rglob("*") if part.is_file())
    facts = [(str(part.relative_to(path.parent)), part.stat().st_size, part.stat().st_mtime_ns) for part in parts]
    return f"{path} {hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


def settings_of(a, names):
    """What the speeds depend on, and what the perplexities depend on."""
    engines = {name: identity(path) for name, path, _ in names}
    given = {"text": identity(a.text), "threads": a.threads, "bench": identity(a.bench) if pathlib.Path(a.bench).exists() else a.bench,
             "python": shutil.which(a.python) or a.python, "engines": engines}
    return (json.dumps(given | {"prompt": a.prompt, "decode": a.decode}), json.dumps(given | {"tokens": a.tokens, "window": a.window}))


class Measured:
    """What was measured, in a file: rounds of speeds and perplexities, both by their settings, and what is known of files by their identity."""

    def __init__(self, path):
        self.path, self.all = path, json.loads(path.read_text()) if path.exists() else {}
        self.bytes = self.all.setdefault("bytes", {})  # that a token reads
        self.made = self.all.setdefault("made of", {})  # by path: the file that another was made of

    def begin(self, speeds, perplexities):
        """The rounds and the perplexities so far."""
        return self.all.setdefault("rounds", {}).setdefault(speeds, []), self.all.setdefault("perplexity", {}).setdefault(perplexities, {})

    def keep(self):
        self.path.write_text(json.dumps(self.all, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", help="the published file, in 4 bits")
    parser.add_argument("--int8")
    parser.add_argument("--int8-head")
    parser.add_argument("--int4")
    parser.add_argument("--int4-head")
    parser.add_argument("--text", required=True)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--bench", default="build/release/bench/quantised/bench_quantised")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no new round begins")
    parser.add_argument("--tokens", type=int, default=2048, help="of the text for the perplexity; 0: none")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--llama", help=argparse.SUPPRESS)
    parser.add_argument("--make", help=argparse.SUPPRESS)
    parser.add_argument("--bytes", help=argparse.SUPPRESS)
    parser.add_argument("--perplexity", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.make:
        return make_q8(a.gguf, a.make)
    if a.bytes:
        return print(bytes_a_token(a.bytes))
    if a.llama:
        return llama(a)
    a.work.mkdir(parents=True, exist_ok=True)
    measured = Measured(a.work / "measured.json")
    names = []
    if a.gguf:
        eight = a.work / "q8_0.gguf"
        if not eight.exists() or measured.made.get(str(eight)) != identity(a.gguf):
            unfinished = eight.with_suffix(".part")
            subprocess.run([a.python, __file__, "--gguf", a.gguf, "--make", str(unfinished), "--text", a.text], check=True)
            unfinished.replace(eight)
            measured.made[str(eight)] = identity(a.gguf)
            measured.keep()
        names.append(("llama.cpp, Q8_0", str(eight), run_llama))
    names += [(name, path, run_kinora) for name, path in (("kinora, int8", a.int8), ("kinora, int8, head in 8 bits", a.int8_head)) if path]
    if a.gguf:
        names.append(("llama.cpp, the published 4 bits", a.gguf, run_llama))
    names += [(name, path, run_kinora) for name, path in (("kinora, int4", a.int4), ("kinora, int4, head in 8 bits", a.int4_head)) if path]
    rounds, perplexities = measured.begin(*settings_of(a, names))
    for _, path, measure in names:
        if measure is run_llama and identity(path) not in measured.bytes:
            printed = subprocess.run([a.python, __file__, "--bytes", path, "--text", a.text], check=True, stdout=subprocess.PIPE, text=True).stdout
            measured.bytes[identity(path)] = int(printed)
            measured.keep()
    begin = time.monotonic()
    while len(rounds) < a.rounds and time.monotonic() - begin < a.seconds:
        rounds.append({name: measure(a, path, False) for name, path, measure in names})
        measured.keep()
    for name, path, measure in names:
        if a.tokens and name not in perplexities and time.monotonic() - begin < a.seconds:
            perplexities[name] = measure(a, path, True)["perplexity"]
            measured.keep()
    if not rounds:
        return None
    figures = {name: [one[name] for one in rounds] for name, _, _ in names}
    limits = [figure["limit"] for rows in figures.values() for figure in rows if "limit" in figure]
    limit = statistics.median(limits) if limits else 0
    print(f"Reading memory: {limit:.1f} GB/s, {a.threads} threads; {len(rounds)} rounds\n")
    print("| engine | GB a token | memory, peak, GB | prefill, tokens/s | decode, tokens/s | share of memory's speed | perplexity |")
    print("|---|---|---|---|---|---|---|")
    for name, path, _ in names:
        memory, prefill, decode = ([figure[key] for figure in figures[name]] for key in ("memory", "prefill", "decode"))
        known = measured.bytes.get(identity(path))
        size = known / 1e9 if known else figures[name][0]["size"]
        share = f"{100 * statistics.median(decode) * size / limit:.0f} %" if limit else "–"
        perplexity = f"{perplexities[name]:.3f}" if name in perplexities else "–"
        print(f"| {name} | {size:.2f} | {statistics.median(memory):.2f} | {spread(prefill, '.0f')} | {spread(decode, '.1f')} | {share} | {perplexity} |")
    print_ratios(figures)
    return None


main()
