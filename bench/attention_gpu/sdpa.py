#!/usr/bin/env python3
"""Times PyTorch's causal attention with the shapes of `kinora bench attention`, one line a kernel: cuDNN and
FlashAttention dense and, with --blocks, FlexAttention on random blocks of 128 keys that all heads share."""
import argparse

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BLOCK = 128


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


def random_blocks(tokens, percent):
    """The mask of random earlier blocks and each tile's own, and the pairs of one head in it."""
    from torch.nn.attention.flex_attention import BlockMask

    tiles = tokens // BLOCK
    chosen = (torch.rand(tiles, tiles, device="cuda") < percent / 100).tril(-1)
    full_counts = chosen.sum(1, dtype=torch.int32)
    full_indices = chosen.int().argsort(dim=1, descending=True, stable=True).int()
    own = torch.arange(tiles, device="cuda", dtype=torch.int32)
    own_indices = own[:, None].repeat(1, tiles)
    mask = BlockMask.from_kv_blocks(
        torch.ones_like(full_counts)[None, None], own_indices[None, None].contiguous(),
        full_counts[None, None], full_indices[None, None], BLOCK_SIZE=BLOCK,
        mask_mod=lambda b, h, q, k: q >= k)
    pairs = int(full_counts.sum()) * BLOCK * BLOCK + tiles * BLOCK * (BLOCK + 1) // 2
    return mask, pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default="4096,32768,131072")
    parser.add_argument("--blocks", default="", help="percentages for FlexAttention, such as 50,10")
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

        def report(label, call, pairs):
            ms = median_ms(call, args.repeats)
            flop = 4 * args.heads * args.head_size * pairs
            print(f"prefill {tokens:7} {'PyTorch ' + label:<30} {ms:10.3f} ms {flop / ms * 1e-9:7.1f} TFLOP/s",
                  flush=True)

        for name, backend in kernels:
            with sdpa_kernel(backend):
                report(name, lambda: F.scaled_dot_product_attention(
                    q, k, v, is_causal=True, enable_gqa=True), tokens * tokens / 2)
        for percent in (int(text) for text in args.blocks.split(",") if text):
            from torch.nn.attention.flex_attention import flex_attention

            flex = torch.compile(flex_attention)
            mask, pairs = random_blocks(tokens, percent)
            report(f"FlexAttention, {percent} %",
                   lambda: flex(q, k, v, block_mask=mask, enable_gqa=True), pairs)


if __name__ == "__main__":
    main()
