"""Text-only directories: Llama 3.x, Qwen2.5, Qwen3."""

import shutil

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from . import measure, weights
from .family_qwen2_5_vl import CASES, MODELS
from .paths import FIXTURES, link, write_json, write_tensors
from .templates import LLAMA3, QWEN2, QWEN3
from .tokenizers import BASE

SHAPE = dict(hidden_size=48, intermediate_size=104, num_hidden_layers=2, max_position_embeddings=2048)


def llama3():
    # original_max_position_embeddings of 64 puts all three bands of the scaling to work on short prompts.
    config = LlamaConfig(
        **SHAPE, vocab_size=1008, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rope_theta=500000.0,
        rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=BASE, eos_token_id=[BASE + 1, BASE + 4],
        rope_scaling={"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 64, "rope_type": "llama3"},
    )
    return LlamaForCausalLM(config), "llama", LLAMA3


def qwen2_tied():
    config = Qwen2Config(
        **SHAPE, vocab_size=1024, num_attention_heads=3, num_key_value_heads=1, rope_theta=1000000.0, rms_norm_eps=1e-6,
        tie_word_embeddings=True, bos_token_id=BASE, eos_token_id=BASE + 2, use_sliding_window=False,
    )
    return Qwen2ForCausalLM(config), "qwen", QWEN2


def llama_f16():
    config = LlamaConfig(
        **SHAPE, vocab_size=1008, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rope_theta=500000.0,
        rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=BASE, eos_token_id=[BASE + 1, BASE + 4],
    )
    return LlamaForCausalLM(config), "llama", LLAMA3


def qwen3():
    config = Qwen3Config(
        **SHAPE, vocab_size=1024, num_attention_heads=4, num_key_value_heads=2, head_dim=24, rope_theta=1000000.0,
        rms_norm_eps=1e-6, tie_word_embeddings=False, bos_token_id=BASE, eos_token_id=BASE + 2, use_sliding_window=False,
    )
    return Qwen3ForCausalLM(config), "qwen", QWEN3


def cases(variant: int) -> dict:
    count = variant + 3
    return {
        "text": [{"role": "user", "content": f"Name {count} colours."}],
        "turns": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": f"Count to {count}."},
            {"role": "assistant", "content": "1, 2"},
            {"role": "user", "content": "Go on: été 东西"},
        ],
    }


def run_case(model, tokenizer, name: str, case_name: str, messages: list, half=None) -> float:
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    inputs = dict(tokenizer(text, add_special_tokens=False, return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    ids = inputs["input_ids"]
    tokens, margin = measure.greedy(model, inputs)
    if margin < measure.MARGIN:
        return margin
    kept = measure.prefill(model, model.model, inputs)
    tensors = {"input_ids": ids[0].to(torch.int32).numpy(), "position_ids": np.arange(ids.shape[1], dtype=np.int32)}
    tensors.update(measure.to_numpy(kept))
    if half is not None:
        # What the class itself makes of f16 weights in f16: kinora must lose less than that.
        lossy = measure.to_numpy(measure.prefill(half, half.model, inputs))
        tensors.update({f"half.{key}": lossy[key] for key in ("hidden.final", "logits")})
    write_tensors(CASES / name / f"{case_name}.safetensors", tensors)
    write_json(
        CASES / name / f"{case_name}.json",
        {
            "model": name, "case": case_name, "family": model.config.model_type, "messages": messages, "text": text,
            "expanded_text": text, "images": [], "videos": [], "rope_delta": 0, "greedy": tokens,
            "greedy_text": tokenizer.decode(tokens), "greedy_margin": round(margin, 5),
        },
    )
    return margin


def make(chosen) -> None:
    for seed, maker in enumerate((llama3, qwen2_tied, qwen3, llama_f16), start=21):
        name = maker.__name__
        stored = torch.float16 if name.endswith("_f16") else torch.bfloat16
        if not chosen(f"models/{name}"):
            continue
        folder = MODELS / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(CASES / name, ignore_errors=True)
        model, tokenizer_name, template = maker()
        weights.randomise(model, seed, list(range(BASE, model.config.vocab_size)), stored)
        tied = model.config.tie_word_embeddings
        if tied:
            model.tie_weights()
        weights.save(model, folder, stored, tied, None, 1)
        model.config.dtype = str(stored).removeprefix("torch.")
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        source = FIXTURES / "tokenizers" / tokenizer_name
        link(folder / "tokenizer.json", source / "tokenizer.json")
        shutil.copy(source / "tokenizer_config.json", folder)
        (folder / "chat_template.jinja").write_text(template)
        eos = model.config.eos_token_id
        write_json(folder / "generation_config.json", {"bos_token_id": BASE, "eos_token_id": eos, "do_sample": False,
                                                       "transformers_version": "4.57.6"})
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        half = None
        if stored == torch.float16:
            half = AutoModelForCausalLM.from_pretrained(folder, dtype=stored, attn_implementation="eager").eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for case_name in cases(0):
            for variant in range(20):
                margin = run_case(model, tokenizer, name, case_name, cases(variant)[case_name], half)
                if margin >= measure.MARGIN:
                    print(f"{name}/{case_name}: margin {margin:.4f} (variant {variant})", flush=True)
                    break
            else:
                raise SystemExit(f"no variant of {name}/{case_name} has a clear greedy choice: use another weight seed")
