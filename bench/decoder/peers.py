#!/usr/bin/env python3
"""A decoder of Qwen2.5-0.5B size with random weights on this machine: kinora, Hugging Face
(PyTorch on the CPU) and llama.cpp (llama-cpp-python, which pip compiles), all on the same number of
threads, measured in turns. Prints one Markdown table, which docs/results/import reads.

    bench/decoder/peers.py [--bench build/release/bench/decoder/bench_decoder] [--rounds 3]

Takes about five minutes at its defaults on two cores (llama.cpp reads a prompt in bf16 at 6 tokens
a second there). Makes its own Python environment in build/peers-venv the first time (several more)."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / "build" / "peers-venv"
PACKAGES = ["numpy", "torch", "transformers>=4.57,<4.58", "llama-cpp-python", "gguf"]
SHAPE = dict(hidden=896, layers=24, heads=14, kv_heads=2, head=64, mlp=4864, vocabulary=151936)


def inside_own_environment():
    """Starts this script again inside its environment, making it first where it is not there."""
    python = VENV / "bin" / "python"
    if pathlib.Path(sys.prefix).resolve() == VENV.resolve():
        return
    marker = VENV / "kinora-ready"
    if not marker.exists():
        print(f"making {VENV} (once)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
        marker.touch()
    os.execv(python, [str(python), *sys.argv])


class Peer:
    """One engine: `prefill` and `decode` give seconds."""

    def __init__(self, name):
        self.name = name
        self.prefill_speeds = []
        self.decode_speeds = []

    def measure(self, prompt, tokens):
        self.prefill_speeds.append(len(prompt) / self.prefill(prompt))
        self.decode_speeds.append(tokens / self.decode(tokens))


class HuggingFace(Peer):
    def __init__(self, dtype_name, threads):
        super().__init__(f"Hugging Face, {dtype_name}")
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM

        self.torch = torch
        torch.set_num_threads(threads)
        config = Qwen2Config(
            vocab_size=SHAPE["vocabulary"], hidden_size=SHAPE["hidden"], intermediate_size=SHAPE["mlp"],
            num_hidden_layers=SHAPE["layers"], num_attention_heads=SHAPE["heads"],
            num_key_value_heads=SHAPE["kv_heads"], tie_word_embeddings=True, rope_theta=1e6,
        )
        torch.manual_seed(1)
        self.model = Qwen2ForCausalLM(config).to(getattr(torch, dtype_name)).eval()

    def step(self, ids, cache):
        with self.torch.inference_mode():
            out = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.logits[0, -1].argmax().view(1, 1), out.past_key_values

    def prefill(self, prompt):
        ids = self.torch.tensor([prompt])
        begin = time.perf_counter()
        self.next, self.cache = self.step(ids, None)
        return time.perf_counter() - begin

    def decode(self, tokens):
        begin = time.perf_counter()
        for _ in range(tokens):
            self.next, self.cache = self.step(self.next, self.cache)
        return time.perf_counter() - begin


def write_gguf(path, kind):
    """The same shape as llama.cpp reads it: qwen2, random weights, a vocabulary of numbers."""
    import gguf
    import numpy as np

    generator = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(SHAPE["layers"])
    writer.add_context_length(32768)
    writer.add_embedding_length(SHAPE["hidden"])
    writer.add_feed_forward_length(SHAPE["mlp"])
    writer.add_head_count(SHAPE["heads"])
    writer.add_head_count_kv(SHAPE["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(SHAPE["vocabulary"])
    types = {
        "bf16": gguf.GGMLQuantizationType.BF16,
        "f32": gguf.GGMLQuantizationType.F32,
        "q8_0": gguf.GGMLQuantizationType.Q8_0,
    }
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([str(i) for i in range(SHAPE["vocabulary"])])
    writer.add_token_types([gguf.TokenType.NORMAL] * SHAPE["vocabulary"])
    writer.add_token_merges(["0 1"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)

    def matrix(name, rows, columns):
        values = (generator.random((rows, columns), dtype=np.float32) - 0.5) * 0.1
        data = gguf.quants.quantize(values, types[kind])
        writer.add_tensor(name, data, raw_dtype=types[kind])

    def vector(name, size, centre):
        writer.add_tensor(name, np.full(size, centre, dtype=np.float32))

    hidden, query, key = SHAPE["hidden"], SHAPE["heads"] * SHAPE["head"], SHAPE["kv_heads"] * SHAPE["head"]
    matrix("token_embd.weight", SHAPE["vocabulary"], hidden)
    vector("output_norm.weight", hidden, 1)
    for layer in range(SHAPE["layers"]):
        prefix = f"blk.{layer}."
        vector(prefix + "attn_norm.weight", hidden, 1)
        vector(prefix + "ffn_norm.weight", hidden, 1)
        for name, rows in (("attn_q", query), ("attn_k", key), ("attn_v", key)):
            matrix(prefix + name + ".weight", rows, hidden)
            vector(prefix + name + ".bias", rows, 0)
        matrix(prefix + "attn_output.weight", hidden, query)
        matrix(prefix + "ffn_gate.weight", SHAPE["mlp"], hidden)
        matrix(prefix + "ffn_up.weight", SHAPE["mlp"], hidden)
        matrix(prefix + "ffn_down.weight", hidden, SHAPE["mlp"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp(Peer):
    def __init__(self, kind, threads, directory):
        super().__init__(f"llama.cpp, {kind}")
        import llama_cpp
        import numpy as np

        path = str(pathlib.Path(directory) / f"{kind}.gguf")
        write_gguf(path, kind)
        self.llama = llama_cpp.Llama(
            path, n_ctx=2048, n_batch=2048, n_ubatch=512, n_threads=threads, n_threads_batch=threads,
            logits_all=False, verbose=False,
        )
        self.np = np

    def choose(self):
        logits = self.llama._ctx.get_logits_ith(-1)
        return int(self.np.ctypeslib.as_array(logits, shape=(SHAPE["vocabulary"],)).argmax())

    def prefill(self, prompt):
        self.llama.reset()
        begin = time.perf_counter()
        self.llama.eval(prompt)
        self.next = self.choose()
        return time.perf_counter() - begin

    def decode(self, tokens):
        begin = time.perf_counter()
        for _ in range(tokens):
            self.llama.eval([self.next])
            self.next = self.choose()
        return time.perf_counter() - begin


class Kinora(Peer):
    """The bench program itself, one repetition a turn."""

    def __init__(self, program, threads, flags, name):
        super().__init__(name)
        self.command = [program, "--json", "--repetitions", "1", "--threads", str(threads), *flags]

    def measure(self, prompt, tokens):
        command = [*self.command, "--prompt", str(len(prompt)), "--tokens", str(tokens)]
        report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for row in report["rows"]:
            if row["unit"] == "tokens/s":
                speeds = self.prefill_speeds if row["name"] == "prefill" else self.decode_speeds
                speeds.append(row["value"]["median"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default=str(ROOT / "build/release/bench/decoder/bench_decoder"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not os.access(arguments.bench, os.X_OK):
        sys.exit(f"{arguments.bench} is not there; build the target bench_decoder or give --bench")

    begin = time.perf_counter()
    prompt = [(7919 * i) % SHAPE["vocabulary"] for i in range(1, arguments.prompt + 1)]
    with tempfile.TemporaryDirectory(prefix="kinora-peers-") as directory:
        peers = [
            Kinora(arguments.bench, arguments.threads, [], "kinora, bf16 weights, f32 arithmetic"),
            Kinora(arguments.bench, arguments.threads, ["--native-bf16", "--rows", "bf16"],
                   "kinora, bf16 weights, native bf16"),
            HuggingFace("float32", arguments.threads),
            HuggingFace("bfloat16", arguments.threads),
            LlamaCpp("f32", arguments.threads, directory),
            LlamaCpp("bf16", arguments.threads, directory),
            LlamaCpp("q8_0", arguments.threads, directory),
        ]
        for peer in peers[2:]:
            peer.measure(prompt[:16], 2)  # warm
            peer.prefill_speeds.clear()
            peer.decode_speeds.clear()
        for _ in range(arguments.rounds):
            for peer in peers:
                peer.measure(prompt, arguments.tokens)
    rows = [
        dict(name=peer.name, prefill=statistics.median(peer.prefill_speeds),
             decode=statistics.median(peer.decode_speeds))
        for peer in peers
    ]
    if arguments.json:
        print(json.dumps(dict(prompt=arguments.prompt, threads=arguments.threads, rows=rows), indent=1))
        return
    print(f"Qwen2.5-0.5B size, random weights, {arguments.threads} threads, prompt of {arguments.prompt} tokens; "
          f"medians of {arguments.rounds} rounds in turns; {time.perf_counter() - begin:.0f} s in all")
    print("\n| | prefill, tokens/s | decode, tokens/s |\n|---|---|---|")
    for row in rows:
        print(f"| {row['name']} | {row['prefill']:.1f} | {row['decode']:.2f} |")


if __name__ == "__main__":
    inside_own_environment()
    main()
