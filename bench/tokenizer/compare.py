#!/usr/bin/env python3
"""Encoding speed of kinora and Hugging Face `tokenizers`, one thread each, same files, same run.

    bench/tokenizer/compare.py BENCH DIR [--repetitions N]

BENCH is the built bench_tokenizer, DIR a folder with tokenizer.json. The corpora are those of the bench; both encode
the same documents, in turns, and the sums of their ids are compared. Prints the median MB/s and the range of each, a
Markdown table that docs/results/import reads.
Makes its Python environment in build/bench-venv the first time; set KINORA_PYTHON to use another interpreter.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def ensure_tokenizers():
    try:
        import tokenizers  # noqa: F401
        return
    except ImportError:
        pass
    python = os.environ.get("KINORA_PYTHON")
    if not python:
        folder = ROOT / "build" / "bench-venv"
        python = folder / "bin" / "python"
        if pathlib.Path(sys.prefix) == folder:
            sys.exit("the environment in build/bench-venv has no tokenizers; delete it and try again")
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "-q", "tokenizers==0.22.2"], check=True)
    os.execv(str(python), [str(python), *sys.argv])


def documents(data):
    """As the bench cuts them: at the first line end after 4096 bytes."""
    begin = 0
    while begin < len(data):
        if len(data) - begin <= 4096:
            end = len(data)
        else:
            end = data.find(b"\n", begin + 4096)
            end = len(data) if end < 0 else end + 1
        yield data[begin:end].decode("utf-8")
        begin = end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("directory")
    parser.add_argument("--repetitions", type=int, default=7)
    arguments = parser.parse_args()
    ensure_tokenizers()
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer, __version__

    theirs = Tokenizer.from_file(str(pathlib.Path(arguments.directory) / "tokenizer.json"))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([arguments.bench, arguments.directory, "--write", folder], check=True)
        ours = subprocess.Popen(
            [arguments.bench, arguments.directory, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        print(f"one thread; median MB/s of {arguments.repetitions} (lowest – highest)\n")
        print(f"| corpus | kinora | Hugging Face tokenizers {__version__} | ratio | ids |\n|---|---|---|---|---|")
        for path in sorted(pathlib.Path(folder).glob("*.txt")):
            data = path.read_bytes()
            texts = list(documents(data))
            speeds = {"ours": [], "theirs": []}
            for _ in range(arguments.repetitions):
                ours.stdin.write(f"{path}\n")
                ours.stdin.flush()
                seconds, count, checksum = ours.stdout.readline().split()
                speeds["ours"].append(len(data) / float(seconds) / 1e6)
                start = time.perf_counter()
                for i in range(0, len(texts), 16):  # the fast way of theirs: no offsets
                    theirs.encode_batch_fast(texts[i : i + 16], add_special_tokens=False)
                speeds["theirs"].append(len(data) / (time.perf_counter() - start) / 1e6)
            total, expected = 0, 0
            for text in texts:
                ids = theirs.encode(text, add_special_tokens=False).ids
                total += len(ids)
                for i in ids:
                    expected = (expected * 31 + i) & 0xFFFFFFFF
            equal = "equal" if (int(count), int(checksum)) == (total, expected) else "DIFFERENT"
            shown = {
                who: f"{statistics.median(values):.1f} ({min(values):.1f} – {max(values):.1f})"
                for who, values in speeds.items()
            }
            ratio = statistics.median(speeds["ours"]) / statistics.median(speeds["theirs"])
            print(f"| {path.stem} | {shown['ours']} | {shown['theirs']} | {ratio:.1f} | {total} {equal} |", flush=True)
        ours.stdin.close()
        ours.wait()


if __name__ == "__main__":
    main()
