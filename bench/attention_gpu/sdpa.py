#!/usr/bin/env python3
"""Times PyTorch's causal attention with the shapes of bench_attention_gpu, one line a kernel."""
import argparse

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def median_ms(call, repeats):
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default="4096,32768,131072")
    parser.add_argument("--heads", type=int, default=28)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    kernels = (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention", SDPBackend.FLASH_ATTENTION))
    for tokens in (int(text) for text in args.tokens.split(",")):
        rows = (1, args.kv_heads, tokens, args.head_size)
        q = torch.randn(1, args.heads, tokens, args.head_size, device="cuda", dtype=torch.bfloat16)
        k = torch.randn(*rows, device="cuda", dtype=torch.bfloat16)
        v = torch.randn(*rows, device="cuda", dtype=torch.bfloat16)
        for name, backend in kernels:
            with sdpa_kernel(backend):
                ms = median_ms(lambda: F.scaled_dot_product_attention(
                    q, k, v, is_causal=True, enable_gqa=True), args.repeats)
            flop = 4 * args.heads * args.head_size * tokens * tokens / 2
            label = "PyTorch " + name
            print(f"prefill {tokens:7} {label:<22} {ms:10.3f} ms {flop / ms * 1e-9:7.1f} TFLOP/s",
                  flush=True)


if __name__ == "__main__":
    main()
