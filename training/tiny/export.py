"""Writes a model in the layout Hugging Face publishes Qwen2.5-VL in, configuration in the 4.57 form."""
import json
import pathlib
import shutil

import torch

from training.tiny.tokenizer import MODEL, Text

COPIED = ["tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json", "chat_template.json"]
LARGEST_VIDEO_FRAME = 64 * 28 * 28  # pixels, 224 x 224


def config_json(c, text):
    return dict(
        architectures=["Qwen2_5_VLForConditionalGeneration"], attention_dropout=0.0, bos_token_id=text.end_of_text,
        eos_token_id=text.end, pad_token_id=text.end_of_text, hidden_act="silu", hidden_size=c.hidden, image_token_id=text.image_pad,
        initializer_range=0.02, intermediate_size=c.mlp, max_position_embeddings=131072, max_window_layers=c.layers,
        model_type="qwen2_5_vl", num_attention_heads=c.heads, num_hidden_layers=c.layers, num_key_value_heads=c.key_heads,
        rms_norm_eps=c.epsilon, rope_scaling=dict(type="mrope", mrope_section=list(c.sections)), rope_theta=c.theta,
        sliding_window=32768, tie_word_embeddings=True, torch_dtype="bfloat16", use_cache=True, use_sliding_window=False,
        video_token_id=text.video_pad, vision_start_token_id=text.vision_start, vision_end_token_id=text.vision_end,
        vision_token_id=text.tokenizer.token_to_id("<|vision_pad|>"), vocab_size=c.vocabulary, transformers_version="4.57.0",
        vision_config=dict(depth=c.vision_layers, fullatt_block_indexes=list(c.full_attention), hidden_act="silu",
                           hidden_size=c.vision_hidden, in_chans=3, in_channels=3, initializer_range=0.02,
                           intermediate_size=c.vision_mlp, model_type="qwen2_5_vl", num_heads=c.vision_heads,
                           out_hidden_size=c.hidden, patch_size=14, spatial_merge_size=2, spatial_patch_size=14,
                           temporal_patch_size=2, tokens_per_second=2, window_size=28 * c.window))


def processor_json(kind):
    smallest = 16 * 28 * 28 if kind == "video" else 4 * 28 * 28
    base = dict(do_convert_rgb=True, do_normalize=True, do_rescale=True, do_resize=True, image_mean=[0.48145466, 0.4578275, 0.40821073],
                image_std=[0.26862954, 0.26130258, 0.27577711], merge_size=2, min_pixels=smallest, max_pixels=LARGEST_VIDEO_FRAME,
                patch_size=14, temporal_patch_size=2, resample=3, rescale_factor=1 / 255,
                size=dict(shortest_edge=smallest, longest_edge=LARGEST_VIDEO_FRAME), processor_class="Qwen2_5_VLProcessor")
    if kind == "video":
        return base | dict(video_processor_type="Qwen2VLVideoProcessor", fps=2, min_frames=2, max_frames=16384, do_sample_frames=False)
    return base | dict(image_processor_type="Qwen2VLImageProcessor")


def write_config(directory, config):
    directory = pathlib.Path(directory)
    text = Text()
    files = {"config.json": config_json(config, text), "preprocessor_config.json": processor_json("image"),
             "video_preprocessor_config.json": processor_json("video"),
             "generation_config.json": dict(bos_token_id=text.end_of_text, eos_token_id=[text.end, text.end_of_text],
                                            pad_token_id=text.end_of_text, do_sample=False, transformers_version="4.57.0")}
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")


def save(model, directory, shard_bytes=None):
    """bf16 safetensors (in shards of at most `shard_bytes`, if given) with everything that belongs to them."""
    from safetensors.torch import save_file
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    weights = {k: v.detach().to(torch.bfloat16).contiguous().cpu() for k, v in model.state_dict().items()}
    shards, size = [{}], 0
    for name, w in weights.items():
        bytes_ = w.numel() * 2
        if shard_bytes and size + bytes_ > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = w
        size += bytes_
    for old in directory.glob("model*.safetensors*"):
        old.unlink()
    index = dict(metadata=dict(total_size=sum(w.numel() * 2 for w in weights.values())), weight_map={})
    for i, shard in enumerate(shards):
        name = "model.safetensors" if len(shards) == 1 else f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file(shard, str(directory / name), metadata=dict(format="pt"))
        index["weight_map"].update({k: name for k in shard})
    if len(shards) > 1:
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    write_config(directory, model.config)
    for name in COPIED:
        if (MODEL / name).resolve() != (directory / name).resolve():
            shutil.copy(MODEL / name, directory / name)
