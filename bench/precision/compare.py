#!/usr/bin/env python3
"""What bf16 costs kinora and PyTorch: errors against double precision over the same random inputs.

    bench_precision FOLDER && bench/precision/compare.py FOLDER

error = |out - exact| / |exact|. Prints a Markdown table, which docs/results/import reads. The exit code is 1 when kinora's is more than twice PyTorch's anywhere.
"""

import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "i32": torch.int32}


def rms_norm(x, weight, epsilon=1e-6):
    wide = x.float() if x.dtype != torch.float64 else x
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * wide.to(x.dtype)


def attention(q, k, v, causal):
    # [rows, heads, size] -> [1, heads, rows, size]; the queries are the last rows
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    mask = None
    if causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(k.shape[2] - q.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).squeeze(0).transpose(0, 1)


def decoder(t, more):
    heads, kv_heads = more["heads"], more["kv_heads"]
    x = t["embeddings"][t["ids"].long()]
    size = t["0.query"].shape[0] // heads
    positions = torch.arange(len(x), device=x.device, dtype=torch.float64)
    frequencies = more["theta"] ** (-torch.arange(0, size, 2, device=x.device, dtype=torch.float64) / size)
    angles = torch.outer(positions, frequencies).repeat(1, 2)[:, None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def turned(y):
        return y * cos + torch.cat((-y[..., size // 2:], y[..., :size // 2]), -1) * sin

    for i in range(more["layers"]):
        w = lambda name: t[f"{i}.{name}"]
        normed = rms_norm(x, w("input_norm"))
        q, k, v = (F.linear(normed, w(name), w(name + "_bias")).unflatten(-1, (-1, size))
                   for name in ("query", "key", "value"))
        mixed = attention(turned(q), turned(k), v, True).flatten(1)
        x = x + F.linear(mixed, w("output"))
        normed = rms_norm(x, w("post_norm"))
        x = x + F.linear(F.silu(F.linear(normed, w("gate"))) * F.linear(normed, w("up")), w("down"))
    return F.linear(rms_norm(x[-more["steps"] - 1:], t["norm"]), t["head"])


def compute(kind, t, more):
    if kind == "matmul":
        return F.linear(t["a"], t["weight"], t["bias"])
    if kind == "norm_gated_matmul":
        gate, up = F.linear(rms_norm(t["x"], t["norm"]), t["weight"]).chunk(2, -1)
        return F.silu(gate) * up
    if kind == "rms_norm":
        return rms_norm(t["x"], t["weight"])
    if kind == "layer_norm":
        return F.layer_norm(t["x"], t["x"].shape[-1:], t["weight"], t["bias"], 1e-6)
    if kind == "gelu_tanh":
        return F.gelu(t["x"], approximate="tanh")
    if kind == "silu_mul":
        return F.silu(t["x"]) * t["y"]
    if kind in ("causal_attention", "window_attention"):
        return attention(t["q"], t["k"], t["v"], kind == "causal_attention")
    return decoder(t, more)


def main():
    folder = pathlib.Path(sys.argv[1])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    worst = 0.0
    print(f"errors of bf16 against double precision, PyTorch {torch.__version__}")
    print("\n| | rows | kinora | PyTorch | ratio |\n|---|---|---|---|---|")
    for case in json.loads((folder / "cases.json").read_text()):
        tensors = {}
        for name, told in case["tensors"].items():
            raw = torch.frombuffer(bytearray((folder / told["file"]).read_bytes()), dtype=TYPES[told["type"]])
            tensors[name] = raw.reshape(told["shape"]).to(device)
        ours = tensors.pop("out").double()

        def of(dtype):
            return {name: x if x.dtype == torch.int32 else x.to(dtype) for name, x in tensors.items()}

        with torch.inference_mode():
            exact = compute(case["kind"], of(torch.float64), case["more"])
            theirs = compute(case["kind"], of(torch.bfloat16), case["more"]).double()
        errors = [((x - exact).norm() / exact.norm()).item() for x in (ours, theirs)]
        ratio = errors[0] / errors[1]
        worst = max(worst, ratio if not math.isnan(ratio) else math.inf)
        print(f"| {case['kind']} | {case['rows']} | {errors[0]:.2e} | {errors[1]:.2e} | {ratio:.2f} |")
    print(f"\nkinora's error is at most {worst:.2f} times PyTorch's (limit 2)")
    return 0 if worst <= 2 else 1


if __name__ == "__main__":
    sys.exit(main())
