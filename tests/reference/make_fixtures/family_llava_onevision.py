"""LLaVA-OneVision directories and cases, and LLaVA-Video's pooling and newlines."""

import shutil

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    Qwen2Config,
    SiglipVisionConfig,
)
from transformers.image_processing_utils import select_best_resolution

from . import measure, pixels, prompts, weights
from .family_qwen2_5_vl import CASES, MODELS, TOKENIZER, VOCAB, hf_messages
from .paths import link, write_json, write_tensors
from .templates import LLAVA_ONEVISION
from .tokenizers import BASE

# 34 / 6 leaves a rest, as 384 / 14 does, and 5 is odd, as 27 is.
SIDE, PATCH = 34, 6
GRID = SIDE // PATCH
PINPOINTS = [[a * SIDE, b * SIDE] for a in (1, 2, 3) for b in (1, 2, 3) if a * b <= 4]
IMAGE_TOKEN, VIDEO_TOKEN = BASE + 14, BASE + 15


def build(name: str, *, tied: bool, dtype: str, old: bool, seed: int, aspect: str, feature_layer: int, extra: dict) -> None:
    folder = MODELS / name
    shutil.rmtree(folder, ignore_errors=True)
    text = Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, rope_theta=1000000.0, rms_norm_eps=1e-6,
        tie_word_embeddings=tied, bos_token_id=BASE, eos_token_id=BASE + 2, use_sliding_window=False,
    )
    vision = SiglipVisionConfig(
        hidden_size=24, intermediate_size=44, num_hidden_layers=3, num_attention_heads=2, image_size=SIDE,
        patch_size=PATCH, vision_use_head=False,
    )
    config = LlavaOnevisionConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN, video_token_index=VIDEO_TOKEN,
        vision_feature_layer=feature_layer, vision_aspect_ratio=aspect, image_grid_pinpoints=PINPOINTS,
        tie_word_embeddings=tied, **extra,
    )
    model = LlavaOnevisionForConditionalGeneration(config)
    torch_dtype = getattr(torch, dtype)
    weights.randomise(model, seed, list(range(BASE, VOCAB)), torch_dtype)
    if tied:
        model.tie_weights()
    weights.save(model, folder, torch_dtype, tied, "llava_onevision" if old else None, 1)
    config.architectures = ["LlavaOnevisionForConditionalGeneration"]
    config.dtype = dtype
    config.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        link(folder / file, TOKENIZER / file)
    write_json(folder / "chat_template.json", {"chat_template": LLAVA_ONEVISION})
    write_json(
        folder / "generation_config.json",
        {"bos_token_id": BASE, "pad_token_id": BASE, "do_sample": False, "eos_token_id": [BASE + 2, BASE],
         "transformers_version": "4.57.6"},
    )
    write_json(
        folder / "processor_config.json",
        {"image_token": "<image>", "num_image_tokens": GRID * GRID, "processor_class": "LlavaOnevisionProcessor",
         "video_token": "<video>", "vision_aspect_ratio": aspect, "vision_feature_select_strategy": "full"},
    )
    write_json(
        folder / "preprocessor_config.json",
        {
            "do_convert_rgb": True, "do_normalize": True, "do_pad": True, "do_rescale": True, "do_resize": True,
            "image_grid_pinpoints": PINPOINTS, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
            "image_processor_type": "LlavaOnevisionImageProcessor", "processor_class": "LlavaOnevisionProcessor",
            "resample": 3, "rescale_factor": 0.00392156862745098, "size": {"height": SIDE, "width": SIDE},
        },
    )


def to_bytes(values: torch.Tensor) -> np.ndarray:
    """u8 [tiles, side, side, 3] from normalised [tiles, 3, side, side]; exact bytes or this fails."""
    values = torch.as_tensor(np.asarray(values))
    rounded = ((values * 0.5 + 0.5) * 255).round()
    assert ((rounded / 255 - 0.5) / 0.5 - values).abs().max() < 1e-5
    return rounded.permute(0, 2, 3, 1).to(torch.uint8).numpy()


@torch.no_grad()
def grid_video_features(model, frames: torch.Tensor) -> torch.Tensor:
    """LLaVA-Video: 2 x 2 means (a last odd row or column is dropped), a newline after every row.

    frames f32 [frames, 3, side, side] -> [frames * rows * (columns + 1), hidden]
    """
    inner, config = model.model, model.config
    states = inner.vision_tower(frames, output_hidden_states=True).hidden_states[config.vision_feature_layer]
    rows = inner.multi_modal_projector(states)
    count, _, width = rows.shape
    grid = rows.view(count, GRID, GRID, width).permute(0, 3, 1, 2)
    pooled = torch.nn.functional.avg_pool2d(grid, config.mm_spatial_pool_stride).permute(0, 2, 3, 1)
    newline = inner.image_newline.expand(count, pooled.shape[1], 1, width)
    return torch.cat((pooled, newline), dim=2).reshape(-1, width)


@torch.no_grad()
def features(model, inputs: dict, grid: bool) -> tuple[list, list]:
    """What replaces the placeholders, per image and per video."""
    inner, config = model.model, model.config
    images, videos = [], []
    if "pixel_values" in inputs:
        images = inner.get_image_features(
            inputs["pixel_values"], inputs["image_sizes"], batch_num_images=inputs["batch_num_images"]
        )
    for clip in inputs.get("pixel_values_videos", []):
        if grid:
            videos.append(grid_video_features(model, clip))
        else:
            rows = inner.get_video_features(clip[None], config.vision_feature_layer, config.vision_feature_select_strategy)
            videos.append(torch.cat((rows[0], inner.image_newline[None])))
    return list(images), videos


@torch.no_grad()
def with_grid_videos(model, processor, text: str, inputs: dict, videos: list) -> dict:
    """Model inputs as embeddings, since HF's class would count and pool a video in its own way."""
    per_video = videos[0].shape[0]
    # HF's expansion of images is right; only the video placeholders are re-counted.
    hf_count = inputs["pixel_values_videos"].shape[1] * ((GRID + 1) // 2) ** 2 + 1
    ids, seen, out = inputs["input_ids"][0].tolist(), 0, []
    while seen < len(ids):
        if ids[seen] == VIDEO_TOKEN:
            out += [VIDEO_TOKEN] * per_video
            seen += hf_count
        else:
            out.append(ids[seen])
            seen += 1
    ids = torch.tensor([out])
    embeds = model.get_input_embeddings()(ids)
    embeds[ids == VIDEO_TOKEN] = torch.cat(videos)
    if "pixel_values" in inputs:
        images, _ = features(model, {k: v for k, v in inputs.items() if k != "pixel_values_videos"}, grid=True)
        embeds[ids == IMAGE_TOKEN] = torch.cat(images)
    return {"input_ids": ids, "inputs_embeds": embeds, "attention_mask": torch.ones_like(ids)}


@torch.no_grad()
def tower_blocks(model, tiles: torch.Tensor) -> dict:
    kept, hooks = {}, []
    for i, layer in enumerate(model.model.vision_tower.vision_model.encoder.layers):

        def after(module, args, output, i=i):
            rows = output[0] if isinstance(output, tuple) else output
            kept[f"vision.block.{i}"] = rows.reshape(-1, rows.shape[-1]).numpy().copy()

        hooks.append(layer.register_forward_hook(after))
    model.model.vision_tower(tiles)
    for hook in hooks:
        hook.remove()
    return kept


def run_case(model, processor, name: str, case_name: str, case: dict) -> float:
    grid = getattr(model.config, "mm_newline_position", "one_token") == "grid"
    text = processor.apply_chat_template(hf_messages(case), add_generation_prompt=True, tokenize=False)
    images = [Image.fromarray(pixels.frame(i["seed"], i["height"], i["width"])) for i in case["images"]]
    clips = [pixels.clip(v["seed"], v["frames"], v["height"], v["width"]) for v in case["videos"]]
    # The nested list is what apply_chat_template(tokenize=True) passes: one list per conversation.
    inputs = dict(
        processor(
            text=[text],
            images=[images] if images else None,
            videos=[torch.from_numpy(c).permute(0, 3, 1, 2) for c in clips] or None,
            return_tensors="pt",
        )
    )
    image_rows, video_rows = features(model, inputs, grid)
    run_inputs = with_grid_videos(model, processor, text, inputs, video_rows) if grid and clips else inputs
    ids = run_inputs["input_ids"]
    if "inputs_embeds" in run_inputs:
        fed = {k: v for k, v in run_inputs.items() if k != "input_ids"}
        tokens, margin = measure.greedy(model, {**fed, "input_ids": torch.empty(1, 0, dtype=torch.long)})
    else:
        fed = run_inputs
        tokens, margin = measure.greedy(model, fed)
    if margin < measure.MARGIN:
        return margin
    kept = measure.prefill(model, model.model.language_model, fed)
    n = ids.shape[1]
    tensors = {"input_ids": ids[0].to(torch.int32).numpy(), "position_ids": np.arange(n, dtype=np.int32)}
    record = {
        "model": name, "case": case_name, "family": "llava_onevision", "messages": case["messages"], "text": text,
        "expanded_text": processor.tokenizer.decode(ids[0], skip_special_tokens=False),
        "images": [dict(i) for i in case["images"]], "videos": [dict(v) for v in case["videos"]],
    }
    for k, rows in enumerate(image_rows):
        best = select_best_resolution([case["images"][k]["height"], case["images"][k]["width"]], PINPOINTS)
        tiles = 1 + (best[0] // SIDE) * (best[1] // SIDE) if len(images) == 1 else 1
        values = inputs["pixel_values"][k][:tiles]
        tensors[f"image.{k}.tiles"] = to_bytes(values)
        tensors[f"vision.image.{k}"] = rows.numpy()
        record["images"][k].update(
            best_resolution=list(best) if len(images) == 1 else None, tiles=tiles, tokens=rows.shape[0]
        )
        if case_name == "image_odd":
            tensors.update(tower_blocks(model, values))
    for k, rows in enumerate(video_rows):
        tensors[f"video.{k}.frames_resized"] = to_bytes(inputs["pixel_values_videos"][k])
        tensors[f"vision.video.{k}"] = rows.numpy()
        record["videos"][k].update(tokens=rows.shape[0], resized_height=SIDE, resized_width=SIDE)
    tensors.update(measure.to_numpy(kept))
    record.update(
        rope_delta=0, greedy=tokens, greedy_text=processor.tokenizer.decode(tokens), greedy_margin=round(margin, 5)
    )
    write_tensors(CASES / name / f"{case_name}.safetensors", tensors)
    write_json(CASES / name / f"{case_name}.json", record)
    return margin


def run_cases(name: str, only: list[str]) -> None:
    shutil.rmtree(CASES / name, ignore_errors=True)
    model = LlavaOnevisionForConditionalGeneration.from_pretrained(
        MODELS / name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    # The fast processors resize as PyTorch does, the slow ones as Pillow: a byte may differ by one.
    processor = AutoProcessor.from_pretrained(MODELS / name, use_fast=True)
    for case_name in only:
        for variant in range(20):
            margin = run_case(model, processor, name, case_name, prompts.llava_cases(variant)[case_name])
            if margin >= measure.MARGIN:
                print(f"{name}/{case_name}: margin {margin:.4f} (variant {variant})", flush=True)
                break
        else:
            raise SystemExit(f"no variant of {name}/{case_name} has a clear greedy choice: use another weight seed")


def make(chosen) -> None:
    if chosen("models/llava_onevision_old"):
        build("llava_onevision_old", tied=False, dtype="bfloat16", old=True, seed=15, aspect="anyres_max_9", feature_layer=-1, extra={})
        run_cases("llava_onevision_old", ["text", "image_odd", "image_tall", "images_several", "video_odd_frames", "videos_two", "image_and_video", "turns"])
    if chosen("models/llava_onevision_new"):
        build("llava_onevision_new", tied=True, dtype="float32", old=False, seed=12, aspect="anyres_max_2", feature_layer=-2, extra={})
        run_cases("llava_onevision_new", ["image_odd", "image_wide", "video_odd_frames"])
    if chosen("models/llava_video_grid"):
        extra = {"mm_newline_position": "grid", "mm_spatial_pool_mode": "average", "mm_spatial_pool_stride": 2}
        build("llava_video_grid", tied=False, dtype="bfloat16", old=False, seed=13, aspect="anyres_max_9", feature_layer=-1, extra=extra)
        run_cases("llava_video_grid", ["video_odd_frames", "videos_two", "image_and_video"])
