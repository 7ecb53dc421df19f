"""Qwen2.5-VL directories and cases."""

import json
import math
import shutil

import numpy as np
import torch
from PIL import Image
from transformers import AutoProcessor, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from . import measure, pixels, prompts, weights
from .paths import FIXTURES, link, write_json, write_tensors
from .templates import QWEN2_5_VL
from .tokenizers import BASE

MODELS = FIXTURES / "models"
CASES = FIXTURES / "cases"
TOKENIZER = FIXTURES / "tokenizers" / "qwen"

SPECIAL = {
    "bos_token_id": BASE,
    "eos_token_id": BASE + 2,
    "vision_start_token_id": BASE + 9,
    "vision_end_token_id": BASE + 10,
    "vision_token_id": BASE + 11,
    "image_token_id": BASE + 12,
    "video_token_id": BASE + 13,
}
VOCAB = 1024  # the tokenizer has 1021: rows beyond it, as in the published files

TEXT = {
    "untied": dict(hidden_size=64, intermediate_size=144, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2),
    "tied": dict(hidden_size=48, intermediate_size=112, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1),
    "demo": dict(hidden_size=80, intermediate_size=144, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=1),
}
VISION = {
    "untied": dict(depth=3, hidden_size=32, intermediate_size=56, num_heads=2, window_size=56, fullatt_block_indexes=[1]),
    "tied": dict(depth=2, hidden_size=24, intermediate_size=40, num_heads=2, window_size=56, fullatt_block_indexes=[1]),
    "demo": dict(depth=3, hidden_size=40, intermediate_size=64, num_heads=2, window_size=112, fullatt_block_indexes=[2]),
}
COMMON_TEXT = dict(
    hidden_act="silu",
    initializer_range=0.02,
    max_position_embeddings=4096,
    max_window_layers=28,
    rms_norm_eps=1e-6,
    rope_theta=1000000.0,
    sliding_window=4096,
    use_sliding_window=False,
    use_cache=True,
    attention_dropout=0.0,
    vocab_size=VOCAB,
)
SECTION = [2, 3, 3]  # heads of 16


def vision_config(shape: str) -> dict:
    return {
        "hidden_act": "silu",
        "in_chans": 3,
        "out_hidden_size": TEXT[shape]["hidden_size"],
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
        **VISION[shape],
    }


def flat_config(shape: str, dtype: str, tied: bool) -> dict:
    """As the published 3B to 72B directories have it."""
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        **SPECIAL,
        **COMMON_TEXT,
        **TEXT[shape],
        "tie_word_embeddings": tied,
        "torch_dtype": dtype,
        "transformers_version": "4.41.2",
        "vision_config": vision_config(shape),
        "rope_scaling": {"type": "mrope", "mrope_section": SECTION},
    }


def v5_config(nested: dict) -> dict:
    """As transformers 5.17 writes it: `rope_parameters` inside both parts, `dtype`, no copies at the top."""
    text = {**nested["text_config"], "dtype": "float32", "pad_token_id": None}
    theta = text.pop("rope_theta")
    text.pop("rope_scaling")
    text["rope_parameters"] = {"mrope_section": SECTION, "rope_theta": theta, "rope_type": "default", "type": "default"}
    vision = {**nested["vision_config"], "dtype": "float32", "model_type": "qwen2_5_vl_vision",
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}}
    keep = ("architectures", "model_type", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
            "vision_token_id")
    return {
        **{key: nested[key] for key in keep},
        "dtype": "float32",
        "text_config": text,
        "tie_word_embeddings": True,
        "transformers_version": "5.17.0",
        "vision_config": vision,
    }


def v5_processor_config(own: dict) -> dict:
    """5.x keeps all processors in processor_config.json, limits as a size, and has no preprocessor_config.json."""
    common = {
        "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
        "image_mean": own["image_mean"], "image_std": own["image_std"], "merge_size": 2, "patch_size": 14, "resample": 3,
        "rescale_factor": 0.00392156862745098,
        "size": {"longest_edge": own["max_pixels"], "shortest_edge": own["min_pixels"]}, "temporal_patch_size": 2,
    }
    return {
        "image_processor": {**common, "image_processor_type": "Qwen2VLImageProcessor"},
        "processor_class": "Qwen2_5_VLProcessor",
        "video_processor": {**common, "do_sample_frames": False, "max_frames": 768, "max_video_tokens": 128000, "min_frames": 4,
                            "return_metadata": False, "video_processor_type": "Qwen2VLVideoProcessor"},
    }


def write_side_files(folder, min_pixels: int, max_pixels: int) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        link(folder / name, TOKENIZER / name)
    write_json(folder / "chat_template.json", {"chat_template": QWEN2_5_VL})
    write_json(
        folder / "generation_config.json",
        {"bos_token_id": BASE, "pad_token_id": BASE, "do_sample": False, "eos_token_id": [BASE + 2, BASE],
         "transformers_version": "4.57.6"},
    )
    write_json(
        folder / "preprocessor_config.json",
        {
            "min_pixels": min_pixels,
            "max_pixels": max_pixels,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": OPENAI_CLIP_MEAN,
            "image_std": OPENAI_CLIP_STD,
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
        },
    )


def build(name: str, shape: str, *, tied: bool, dtype: str, old: bool, shards: int, seed: int, max_pixels: int):
    folder = MODELS / name
    shutil.rmtree(folder, ignore_errors=True)
    flat = flat_config(shape, dtype, tied)
    model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**flat))
    torch_dtype = getattr(torch, dtype)
    weights.randomise(model, seed, list(range(BASE, VOCAB)), torch_dtype)
    weights.save(model, folder, torch_dtype, tied, "qwen2_5_vl" if old else None, shards)
    if old:
        write_json(folder / "config.json", flat)
    else:
        # What 4.57 itself writes for this model.
        model.config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
        model.config.save_pretrained(folder)
    write_side_files(folder, 4 * 28 * 28, max_pixels)


def to_patches(values: torch.Tensor) -> np.ndarray:
    """Bytes in patch order from the processor's normalised floats; they are exact bytes or this fails."""
    span = values.shape[1] // 3
    mean = torch.tensor(OPENAI_CLIP_MEAN).repeat_interleave(span)
    std = torch.tensor(OPENAI_CLIP_STD).repeat_interleave(span)
    bytes_ = (values * std + mean) * 255
    rounded = bytes_.round()
    back = (rounded / 255 - mean) / std
    assert (back - values).abs().max() < 1e-5, (back - values).abs().max()
    return rounded.to(torch.uint8).numpy()


def hf_messages(case: dict) -> list:
    return [
        {"role": m["role"], "content": [{k: v for k, v in c.items() if k != "index"} for c in m["content"]]}
        for m in case["messages"]
    ]


class UntruncatedSeconds:
    """Positions with fractional `second_per_grid_ts`.

    4.57 casts the seconds to an integer first, which puts all frames at one time above 2 fps; the models were
    trained with trunc(frame * seconds * tokens_per_second). Folding the seconds into tokens_per_second gives that.
    """

    def __init__(self, model, seconds: list[float]):
        self.model, self.seconds = model, seconds

    def __enter__(self):
        self.original = self.model.model.get_rope_index
        if len(set(self.seconds)) != 1 or float(self.seconds[0]).is_integer():
            assert all(float(s).is_integer() for s in self.seconds)
            return
        config = self.model.config.vision_config

        def patched(input_ids=None, image_grid_thw=None, video_grid_thw=None, second_per_grid_ts=None, attention_mask=None):
            kept = config.tokens_per_second
            config.tokens_per_second = self.seconds[0] * kept
            try:
                ones = None if second_per_grid_ts is None else [1.0] * len(self.seconds)
                return self.original(input_ids, image_grid_thw, video_grid_thw, ones, attention_mask)
            finally:
                config.tokens_per_second = kept

        self.model.model.get_rope_index = patched

    def __exit__(self, *unused):
        self.model.model.get_rope_index = self.original


@torch.no_grad()
def tower_blocks(visual, values, grid) -> dict:
    """Outputs of the tower's blocks, put back from window order into patch order."""
    kept, hooks = {}, []
    index, _ = visual.get_window_index(grid)
    back = torch.argsort(index)
    unit = visual.spatial_merge_unit
    for i, block in enumerate(visual.blocks):

        def after(module, args, output, i=i):
            rows = output.reshape(-1, unit, output.shape[-1])[back].reshape(-1, output.shape[-1])
            kept[f"vision.block.{i}"] = rows.numpy().copy()

        hooks.append(block.register_forward_hook(after))
    visual(values, grid_thw=grid)
    for hook in hooks:
        hook.remove()
    return kept


def run_case(model, processor, name: str, case_name: str, case: dict) -> float:
    """Measures and writes one case; returns its greedy margin (nothing is written when too small)."""
    text = processor.apply_chat_template(hf_messages(case), add_generation_prompt=True, tokenize=False)
    images = [Image.fromarray(pixels.frame(i["seed"], i["height"], i["width"])) for i in case["images"]]
    clips = [pixels.clip(v["seed"], v["frames"], v["height"], v["width"]) for v in case["videos"]]
    extra = {"videos_kwargs": {"fps": [v["fps"] for v in case["videos"]]}} if clips else {}
    inputs = processor(
        text=[text],
        images=images or None,
        videos=[torch.from_numpy(c).permute(0, 3, 1, 2) for c in clips] or None,
        return_tensors="pt",
        **extra,
    )
    seconds = [float(s) for s in inputs.get("second_per_grid_ts", [])]
    inputs = dict(inputs)
    ids = inputs["input_ids"]
    tensors = {"input_ids": ids[0].to(torch.int32).numpy()}
    record = {
        "model": name,
        "case": case_name,
        "family": "qwen2_5_vl",
        "messages": case["messages"],
        "text": text,
        "expanded_text": processor.tokenizer.decode(ids[0], skip_special_tokens=False),
        "images": [dict(i) for i in case["images"]],
        "videos": [dict(v) for v in case["videos"]],
    }
    with UntruncatedSeconds(model, seconds or [1.0]):
        tokens, margin = measure.greedy(model, inputs)
        if margin < measure.MARGIN:
            return margin
        kept = measure.prefill(model, model.model.language_model, inputs)
        positions, delta = model.model.get_rope_index(
            ids, inputs.get("image_grid_thw"), inputs.get("video_grid_thw"), inputs.get("second_per_grid_ts"),
            inputs["attention_mask"],
        )
    tensors["position_ids"] = positions[:, 0].to(torch.int32).numpy()
    for kind, values, grids in (
        ("image", inputs.get("pixel_values"), inputs.get("image_grid_thw")),
        ("video", inputs.get("pixel_values_videos"), inputs.get("video_grid_thw")),
    ):
        if values is None:
            continue
        get = model.get_image_features if kind == "image" else model.get_video_features
        with torch.no_grad():
            features = get(values, grids)
        start = 0
        for k, grid in enumerate(grids.tolist()):
            count = math.prod(grid)
            tensors[f"{kind}.{k}.patches"] = to_patches(values[start : start + count])
            tensors[f"vision.{kind}.{k}"] = features[k].numpy()
            entry = record[kind + "s"][k]
            entry.update(grid_thw=grid, resized_height=grid[1] * 14, resized_width=grid[2] * 14)
            if kind == "video":
                entry["second_per_grid_t"] = seconds[k]
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


def load(name: str):
    folder = MODELS / name
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    return model, AutoProcessor.from_pretrained(folder)


def run_cases(name: str, cases, only=None) -> None:
    shutil.rmtree(CASES / name, ignore_errors=True)
    model, processor = load(name)
    for case_name in only or cases(0):
        for variant in range(20):
            margin = run_case(model, processor, name, case_name, cases(variant)[case_name])
            if margin >= measure.MARGIN:
                print(f"{name}/{case_name}: margin {margin:.4f} (variant {variant})", flush=True)
                break
        else:
            raise SystemExit(f"no variant of {name}/{case_name} has a clear greedy choice: use another weight seed")


def make(chosen) -> None:
    if chosen("models/qwen2_5_vl_untied_old"):
        build("qwen2_5_vl_untied_old", "untied", tied=False, dtype="bfloat16", old=True, shards=3, seed=1, max_pixels=24 * 28 * 28)
        run_cases("qwen2_5_vl_untied_old", prompts.qwen_cases)
    if chosen("models/qwen2_5_vl_tied_new"):
        build("qwen2_5_vl_tied_new", "tied", tied=True, dtype="float32", old=False, shards=1, seed=2, max_pixels=24 * 28 * 28)
        run_cases("qwen2_5_vl_tied_new", prompts.qwen_cases, ["text", "image_odd", "video_odd_frames", "image_and_video"])
        make_v5()
    if chosen("models/qwen2_5_vl_demo"):
        build("qwen2_5_vl_demo", "demo", tied=False, dtype="bfloat16", old=False, shards=1, seed=3, max_pixels=96 * 28 * 28)
        run_cases("qwen2_5_vl_demo", prompts.demo_cases)


def make_v5() -> None:
    """The weights and cases of qwen2_5_vl_tied_new under the files that 5.x writes."""
    source, folder = MODELS / "qwen2_5_vl_tied_new", MODELS / "qwen2_5_vl_tied_v5"
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("model.safetensors", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        link(folder / name, source / name)
    write_json(folder / "config.json", v5_config(json.loads((source / "config.json").read_text())))
    write_json(
        folder / "processor_config.json", v5_processor_config(json.loads((source / "preprocessor_config.json").read_text()))
    )
    (folder / "chat_template.jinja").write_text(QWEN2_5_VL)
