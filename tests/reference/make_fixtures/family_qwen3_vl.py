"""Qwen3-VL directories and cases."""

import json
import math
import shutil

import numpy as np
import torch
from PIL import Image
from transformers import AutoProcessor, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from . import measure, pixels, prompts, weights
from .family_qwen2_5_vl import CASES, MODELS, TOKENIZER, VOCAB, hf_messages
from .paths import link, write_json, write_tensors
from .templates import QWEN3_VL
from .tokenizers import BASE

SPECIAL = {
    "image_token_id": BASE + 12,
    "video_token_id": BASE + 13,
    "vision_start_token_id": BASE + 9,
    "vision_end_token_id": BASE + 10,
}
START, END, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"
TEXT = {
    "untied": dict(hidden_size=64, intermediate_size=144, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                   head_dim=24),
    "tied": dict(hidden_size=48, intermediate_size=112, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1,
                 head_dim=16),
}
SECTION = {"untied": [6, 3, 3], "tied": [3, 3, 2]}
VISION = {
    "untied": dict(depth=4, hidden_size=72, intermediate_size=88, num_heads=1, num_position_embeddings=64,
                   deepstack_visual_indexes=[1, 2]),
    "tied": dict(depth=3, hidden_size=32, intermediate_size=56, num_heads=2, num_position_embeddings=16,
                 deepstack_visual_indexes=[0, 1, 2]),
}
LIMITS = {"image": (4 * 1024, 24 * 1024), "video": (4 * 1024, 64 * 1024)}  # pixels: a picture's, a whole video's


def config(shape: str, dtype: str, tied: bool) -> dict:
    """As the published directories have it."""
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        **SPECIAL,
        "model_type": "qwen3_vl",
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": BASE,
            "dtype": dtype,
            "eos_token_id": BASE + 2,
            "hidden_act": "silu",
            **TEXT[shape],
            "max_position_embeddings": 4096,
            "model_type": "qwen3_vl_text",
            "rms_norm_eps": 1e-6,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": SECTION[shape], "rope_type": "default"},
            "rope_theta": 5000000,
            "tie_word_embeddings": tied,
            "use_cache": True,
            "vocab_size": VOCAB,
        },
        "tie_word_embeddings": tied,
        "transformers_version": "4.57.0.dev0",
        "vision_config": {
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": 3,
            "model_type": "qwen3_vl",
            "out_hidden_size": TEXT[shape]["hidden_size"],
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            **VISION[shape],
        },
    }


def v5_config(old: dict) -> dict:
    """As transformers 5.17 writes it: `rope_parameters` in place of theta and scaling."""
    text = dict(old["text_config"])
    scaling, theta = text.pop("rope_scaling"), text.pop("rope_theta")
    text["rope_parameters"] = {**scaling, "rope_theta": theta}
    return {**old, "text_config": text, "dtype": text["dtype"], "transformers_version": "5.17.0"}


def processor_config(kind: str) -> dict:
    least, most = LIMITS[kind]
    return {
        "size": {"longest_edge": most, "shortest_edge": least},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
        **({"image_processor_type": "Qwen2VLImageProcessorFast"} if kind == "image" else
           {"video_processor_type": "Qwen3VLVideoProcessor"}),
    }


def write_side_files(folder) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        link(folder / name, TOKENIZER / name)
    write_json(folder / "chat_template.json", {"chat_template": QWEN3_VL})
    write_json(
        folder / "generation_config.json",
        {"bos_token_id": BASE, "pad_token_id": BASE, "do_sample": False, "eos_token_id": [BASE + 2, BASE],
         "transformers_version": "4.56.0"},
    )
    write_json(folder / "preprocessor_config.json", processor_config("image"))
    write_json(folder / "video_preprocessor_config.json", processor_config("video"))


def build(name: str, shape: str, *, tied: bool, dtype: str, shards: int, seed: int) -> None:
    folder = MODELS / name
    shutil.rmtree(folder, ignore_errors=True)
    own = config(shape, dtype, tied)
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**own))
    torch_dtype = getattr(torch, dtype)
    weights.randomise(model, seed, list(range(BASE, VOCAB)), torch_dtype)
    weights.save(model, folder, torch_dtype, tied, None, shards)
    write_json(folder / "config.json", own)
    write_side_files(folder)


def to_patches(values: torch.Tensor) -> np.ndarray:
    """Bytes in patch order from the processor's normalised floats; they are exact bytes or this fails."""
    bytes_ = (values * 0.5 + 0.5) * 255
    rounded = bytes_.round()
    assert ((rounded / 255 - 0.5) / 0.5 - values).abs().max() < 1e-5
    return rounded.to(torch.uint8).numpy()


@torch.no_grad()
def tower_blocks(visual, values, grid) -> dict:
    kept, hooks = {}, []
    for i, block in enumerate(visual.blocks):
        hooks.append(block.register_forward_hook(
            lambda module, args, output, i=i: kept.__setitem__(f"vision.block.{i}", output.numpy().copy())))
    visual(values, grid_thw=grid)
    for hook in hooks:
        hook.remove()
    return kept


def run_case(model, processor, name: str, case_name: str, case: dict, keeps_markers: bool) -> float:
    """Measures and writes one case; returns its greedy margin (nothing is written when too small)."""
    text = processor.apply_chat_template(hf_messages(case), add_generation_prompt=True, tokenize=False)
    images = [Image.fromarray(pixels.frame(i["seed"], i["height"], i["width"])) for i in case["images"]]
    clips = [pixels.clip(v["seed"], v["frames"], v["height"], v["width"]) for v in case["videos"]]
    given = text
    if keeps_markers:  # a second pair around each video, of which 4.57 takes the inner one away
        given = text.replace(f"{START}{VIDEO}{END}", f"{START}{START}{VIDEO}{END}{END}")
    extra = {}
    if clips:
        extra = {
            "do_sample_frames": False,
            "video_metadata": [
                {"fps": v["fps"], "total_num_frames": v["frames"], "frames_indices": list(range(v["frames"]))}
                for v in case["videos"]
            ],
        }
    inputs = dict(
        processor(
            text=[given],
            images=images or None,
            videos=[torch.from_numpy(c).permute(0, 3, 1, 2) for c in clips] or None,
            return_tensors="pt",
            **extra,
        )
    )
    ids = inputs["input_ids"]
    tensors = {"input_ids": ids[0].to(torch.int32).numpy()}
    record = {
        "model": name,
        "case": case_name,
        "family": "qwen3_vl",
        "messages": case["messages"],
        "text": text,
        "expanded_text": processor.tokenizer.decode(ids[0], skip_special_tokens=False),
        "images": [dict(i) for i in case["images"]],
        "videos": [dict(v) for v in case["videos"]],
    }
    tokens, margin = measure.greedy(model, inputs)
    if margin < measure.MARGIN:
        return margin
    kept = measure.prefill(model, model.model.language_model, inputs)
    positions, delta = model.model.get_rope_index(
        ids, inputs.get("image_grid_thw"), inputs.get("video_grid_thw"), inputs["attention_mask"]
    )
    tensors["position_ids"] = positions[:, 0].to(torch.int32).numpy()
    for kind, values, grids in (
        ("image", inputs.get("pixel_values"), inputs.get("image_grid_thw")),
        ("video", inputs.get("pixel_values_videos"), inputs.get("video_grid_thw")),
    ):
        if values is None:
            continue
        with torch.no_grad():
            features, deep = model.model.get_image_features(values, grids)
        # Beside each other: the embedding, then the rows of every level.
        rows = torch.cat([torch.cat(list(features)), *deep], dim=1)
        start = 0
        for k, grid in enumerate(grids.tolist()):
            count = math.prod(grid)
            tensors[f"{kind}.{k}.patches"] = to_patches(values[start : start + count])
            tensors[f"vision.{kind}.{k}"] = rows[start // 4 : (start + count) // 4].numpy()
            record[kind + "s"][k].update(grid_thw=grid, resized_height=grid[1] * 16, resized_width=grid[2] * 16)
            start += count
        if case_name == "image_odd":
            tensors.update(tower_blocks(model.model.visual, values, grids))
    tensors.update(measure.to_numpy(kept))
    record.update(
        rope_delta=int(delta),
        greedy=tokens,
        greedy_text=processor.tokenizer.decode(tokens),
        greedy_margin=round(margin, 5),
    )
    write_tensors(CASES / name / f"{case_name}.safetensors", tensors)
    write_json(CASES / name / f"{case_name}.json", record)
    return margin


def run_cases(name: str, weights_of: str, only=None, keeps_markers: bool = False) -> None:
    shutil.rmtree(CASES / name, ignore_errors=True)
    folder = MODELS / weights_of
    model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    processor = AutoProcessor.from_pretrained(folder)
    for case_name in only or prompts.qwen3_vl_cases(0):
        for variant in range(20):
            case = prompts.qwen3_vl_cases(variant)[case_name]
            margin = run_case(model, processor, name, case_name, case, keeps_markers)
            if margin >= measure.MARGIN:
                print(f"{name}/{case_name}: margin {margin:.4f} (variant {variant})", flush=True)
                break
        else:
            raise SystemExit(f"no variant of {name}/{case_name} has a clear greedy choice: use another weight seed")


def make(chosen) -> None:
    if chosen("models/qwen3_vl_untied"):
        build("qwen3_vl_untied", "untied", tied=False, dtype="bfloat16", shards=2, seed=41)
        run_cases("qwen3_vl_untied", "qwen3_vl_untied")
    if chosen("models/qwen3_vl_tied"):
        build("qwen3_vl_tied", "tied", tied=True, dtype="float32", shards=1, seed=42)
        run_cases("qwen3_vl_tied", "qwen3_vl_tied", ["text", "image_odd", "video_odd_frames", "image_and_video"])
        make_v5()


def make_v5() -> None:
    """The weights of qwen3_vl_tied under the files that 5.x writes, with the prompts that 5.10 and later make."""
    source, folder = MODELS / "qwen3_vl_tied", MODELS / "qwen3_vl_tied_v5"
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("model.safetensors", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        link(folder / name, source / name)
    write_json(folder / "config.json", v5_config(json.loads((source / "config.json").read_text())))
    write_json(
        folder / "processor_config.json",
        {"image_processor": processor_config("image"), "processor_class": "Qwen3VLProcessor",
         "video_processor": processor_config("video")},
    )
    (folder / "chat_template.jinja").write_text(QWEN3_VL)
    run_cases("qwen3_vl_tied_v5", "qwen3_vl_tied", ["video_odd_frames", "videos_two", "image_and_video"], keeps_markers=True)
