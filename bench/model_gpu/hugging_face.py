#!/usr/bin/env python3
"""Times Hugging Face's decoder of a shape with random bf16 weights on a GPU, for the same prompts and contexts
that `kinora bench model --json` measured, and prints both side by side: a Markdown table, which docs/results/import reads.

    kinora bench model --shape qwen2.5-vl-7b --random-weights --json > kinora.json
    bench/model_gpu/hugging_face.py kinora.json [--attention cudnn|flash] [--most-tokens 131072] [--most-rows 32768]

Prefill is one call with logits of the last token only; decoding appends to its DynamicCache, as generate() does.
The shape's text decoder is built as a Qwen2 model (one rotary axis in the place of three).
"""

import argparse
import json
import statistics
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.cache_utils import DynamicCache

SHAPES = {
    "qwen2.5-vl-7b": (3584, 28, 28, 4, 18944, 152064, False),
    "qwen2.5-vl-3b": (2048, 36, 16, 2, 11008, 151936, True),
    "llava-onevision-7b": (3584, 28, 28, 4, 18944, 152128, False),
}
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def make_model(shape):
    hidden, layers, heads, kv_heads, wide, vocabulary, tied = SHAPES[shape]
    config = Qwen2Config(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        intermediate_size=wide, vocab_size=vocabulary, tie_word_embeddings=tied, max_position_embeddings=1 << 20)
    config._attn_implementation = "sdpa"
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    torch.set_default_dtype(default)
    model.to_empty(device="cuda").eval()
    for name, parameter in model.named_parameters():
        parameter.data.normal_(0, 0.02) if parameter.dim() > 1 else parameter.data.fill_(1.0 if "norm" in name else 0.0)
    # Buffers came up empty too: the rotary frequencies.
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            size = module.inv_freq.numel() * 2
            module.inv_freq = 1.0 / (1e6 ** (torch.arange(0, size, 2, device="cuda").float() / size))
            if hasattr(module, "original_inv_freq"):
                module.original_inv_freq = module.inv_freq
    return model


def seconds(work):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinora", help="what kinora bench model --json printed")
    parser.add_argument("--attention", choices=BACKENDS, default="cudnn")
    parser.add_argument("--most-tokens", type=int, default=131072)
    parser.add_argument("--most-rows", type=int, default=32768)
    parser.add_argument("--steps", type=int, default=16)
    arguments = parser.parse_args()
    with open(arguments.kinora, encoding="utf-8") as file:
        ours = json.load(file)
    model = make_model(ours["shape"])
    vocabulary = model.config.vocab_size
    print(f"{ours['shape']} on {torch.cuda.get_device_name()}: kinora and Hugging Face, "
          f"PyTorch {torch.__version__}, {arguments.attention} attention, random weights\n")
    print(f"| {ours['shape']} | kinora | Hugging Face | Hugging Face / kinora |\n|---|---|---|---|")
    with torch.inference_mode(), sdpa_kernel([BACKENDS[arguments.attention]]):
        ids = lambda count: torch.randint(0, vocabulary, (1, count), device="cuda")
        model(ids(1024), use_cache=True, logits_to_keep=1)  # libraries load, kernels are chosen
        for figure in ours.get("prefill", []):
            tokens = figure["tokens"]
            if tokens > arguments.most_tokens:
                continue
            prompt = ids(tokens)
            torch.cuda.reset_peak_memory_stats()
            try:
                theirs = seconds(lambda: model(prompt, use_cache=True, logits_to_keep=1))
            except torch.OutOfMemoryError:
                print(f"| prefill of {tokens:,} tokens | {figure['seconds']:.3f} s | out of memory | |")
                continue
            print(f"| prefill of {tokens:,} tokens | {figure['seconds']:.3f} s | {theirs:.3f} s | {theirs / figure['seconds']:.2f} |")
            print(f"| peak memory at {tokens:,} tokens | {figure['peak_bytes'] / 2**30:.1f} GiB | "
                  f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB | |", flush=True)
    with torch.inference_mode():
        # One query over many rows runs on whatever kernel PyTorch prefers.
        for figure in ours.get("decode", []):
            if figure["context"] > arguments.most_rows:
                continue
            cache = DynamicCache()
            with sdpa_kernel([BACKENDS[arguments.attention]]):
                token = model(ids(figure["context"]), past_key_values=cache, use_cache=True,
                              logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
            times = []
            for _ in range(arguments.steps):
                def step():
                    nonlocal token
                    token = model(token, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1, keepdim=True)
                times.append(seconds(step))
            theirs = statistics.median(times) * 1e3
            print(f"| decode at {figure['context']:,} rows | {figure['ms_per_token']:.2f} ms | {theirs:.1f} ms | "
                  f"{theirs / figure['ms_per_token']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
