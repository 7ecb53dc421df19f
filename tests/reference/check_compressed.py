#!/usr/bin/env python3
"""Reads what `kinora quantize` wrote with the package compressed-tensors, and compares.

    tests/reference/check_compressed.py QUANTISED ORIGINAL [--load]

Every projection is unpacked by the package, which must give the codes times their scales to the last bit; its distance to the original
weight is printed. With --load the directory is also loaded by transformers, as a user would. Needs the packages of requirements.txt,
and accelerate to load.
"""
import argparse
import json
import pathlib

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig
from safetensors import safe_open


def tensors(folder):
    out = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                out[name] = file.get_tensor(name)
    return out


def codes(parts):
    """What the file holds, by the format's description: eight nibbles a word, low ones first, with 8 added."""
    if "weight_packed" not in parts:
        return parts["weight"].float()
    words = parts["weight_packed"].to(torch.int64)
    rows, columns = parts["weight_shape"].tolist()
    return torch.stack([(words >> 4 * i & 15) - 8 for i in range(8)], -1).reshape(rows, -1)[:, :columns].float()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("quantised")
    parser.add_argument("original")
    parser.add_argument("--load", action="store_true")
    a = parser.parse_args()
    config = json.loads((pathlib.Path(a.quantised) / "config.json").read_text())["quantization_config"]
    QuantizationConfig(**config)  # the package accepts it
    groups = config["config_groups"]
    stored, original = tensors(a.quantised), tensors(a.original)
    worst, count = 0.0, 0
    for name in (n for n in stored if n.endswith(".weight_scale")):
        layer = name.removesuffix(".weight_scale")
        parts = {n.removeprefix(layer + "."): t for n, t in stored.items() if n.startswith(layer + ".") and not n.endswith("bias")}
        group = groups["group_1" if layer.endswith("lm_head") and "group_1" in groups else "group_0"]
        compressor = BaseCompressor.load_from_registry(group.get("format", config["format"]))
        weights = QuantizationArgs(**group["weights"])
        wide = compressor.decompress_weight(compressed_data=parts, quantization_args=weights)
        scale = parts["weight_scale"]
        product = codes(parts) * scale.float().repeat_interleave(wide.shape[1] // scale.shape[1], 1)
        assert torch.equal(wide, product.to(wide.dtype)), f"{layer}: the package reads other numbers"
        table = next((n for n in original if n.endswith("embed_tokens.weight")), "")
        reference = original.get(layer + ".weight", original.get(table)).float()  # a tied head is the embeddings
        assert wide.shape == reference.shape, layer
        worst = max(worst, float((wide.float() - reference).norm() / reference.norm()))
        count += 1
    others = [n for n in original if n in stored and stored[n].dtype == original[n].dtype]
    changed = [n for n in others if not torch.equal(stored[n], original[n])]
    print(f"{count} layers in {config['format']}: the same numbers, at most {100 * worst:.2f} % from the original; {len(others)} other tensors, "
          f"{len(changed)} scaled")
    if a.load:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        model = AutoModelForCausalLM.from_pretrained(a.quantised, dtype=torch.float32).eval()
        ids = AutoTokenizer.from_pretrained(a.quantised)("The capital of France is", return_tensors="pt").input_ids
        print("transformers:", model.generate(ids, max_new_tokens=8, do_sample=False)[0].tolist())


main()
