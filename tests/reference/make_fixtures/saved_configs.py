"""What one version of transformers writes as config.json, and what it reads in it: configs.py runs this with each version.

Prints `{"version", "cases": {NAME: {"config", "values"}}}`, or with names of files what it reads in them. Needs no torch.
"""

import json
import pathlib
import sys
import tempfile

import transformers

SMALL_TEXT = dict(
    hidden_size=96, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, intermediate_size=200,
    vocab_size=1000, max_position_embeddings=4096,
)
LLAVA_7B_TEXT = dict(
    model_type="qwen2", hidden_size=3584, intermediate_size=18944, num_attention_heads=28, num_hidden_layers=28,
    num_key_value_heads=4, rope_theta=1000000.0, vocab_size=152000,
)
SIGLIP = dict(
    model_type="siglip_vision_model", hidden_size=1152, image_size=384, intermediate_size=4304,
    num_attention_heads=16, num_hidden_layers=26, patch_size=14, vision_use_head=False,
)
PINPOINTS = dict(image_grid_pinpoints=[[384, 384], [384, 768]])
MROPE = {"type": "mrope", "mrope_section": [2, 3, 3]}
QWEN_7B = dict(
    hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4, intermediate_size=18944,
    vocab_size=152064, max_position_embeddings=128000, rope_theta=1000000.0, tie_word_embeddings=False,
    rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]}, image_token_id=151655, video_token_id=151656,
    eos_token_id=151645,
)
QWEN3_SMALL_TEXT = dict(SMALL_TEXT, head_dim=32, rope_scaling={"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]})

# name: (class, settings). What is not given is the class's default, which some versions leave out of nested objects.
CASES = {
    "llama default": ("LlamaConfig", {}),
    "llama small": ("LlamaConfig", dict(SMALL_TEXT, rope_theta=500000.0, tie_word_embeddings=True)),
    "qwen2 default": ("Qwen2Config", {}),
    "qwen2 small": ("Qwen2Config", SMALL_TEXT),
    "qwen3 default": ("Qwen3Config", {}),
    "qwen3 small": ("Qwen3Config", dict(SMALL_TEXT, head_dim=24)),
    "qwen2_5_vl 7b": ("Qwen2_5_VLConfig", dict(QWEN_7B, vision_config=dict(
        hidden_size=1280, out_hidden_size=3584, in_chans=3, spatial_patch_size=14, tokens_per_second=2))),
    "qwen2_5_vl small": ("Qwen2_5_VLConfig", dict(
        SMALL_TEXT, rope_scaling=MROPE, image_token_id=5, video_token_id=6,
        vision_config=dict(hidden_size=64, num_heads=4, out_hidden_size=96))),
    "llava_onevision 7b": ("LlavaOnevisionConfig", dict(PINPOINTS, 
        text_config=LLAVA_7B_TEXT, vision_config=SIGLIP, image_token_index=151646, video_token_index=151647)),
    # The class's default of 14 vision heads does not divide its width, and no model can be made of it.
    "llava_onevision default": ("LlavaOnevisionConfig", dict(PINPOINTS, vision_config=SIGLIP)),
    "llava_onevision small": ("LlavaOnevisionConfig", dict(PINPOINTS, 
        text_config=dict(SMALL_TEXT, model_type="qwen2"), vision_config=dict(SIGLIP, num_hidden_layers=12, vision_use_head=True),
        vision_feature_layer=-2)),
    "llava_onevision llama": ("LlavaOnevisionConfig", dict(PINPOINTS, 
        text_config=dict(model_type="llama", hidden_size=2048, rope_theta=500000.0), vision_config=dict(model_type="siglip_vision_model"))),
    "llava_onevision qwen3": ("LlavaOnevisionConfig", dict(PINPOINTS, 
        text_config=dict(model_type="qwen3", hidden_size=2048), vision_config=dict(model_type="siglip_vision_model", hidden_size=1152, num_attention_heads=16))),
    "qwen3_vl default": ("Qwen3VLConfig", dict(text_config=dict(
        rope_scaling={"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]}), vision_config=dict(out_hidden_size=4096))),
    "qwen3_vl small": ("Qwen3VLConfig", dict(
        text_config=QWEN3_SMALL_TEXT, image_token_id=5, video_token_id=6,
        vision_config=dict(depth=3, hidden_size=64, num_heads=4, out_hidden_size=96, deepstack_visual_indexes=[0, 2]))),
}


def values(config) -> dict:
    """Whatever the file left out is what the class says."""
    text = getattr(config, "text_config", config)
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    decoder = {key: getattr(text, key) for key in (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
        "vocab_size", "max_position_embeddings", "rms_norm_eps")}
    decoder["head_dim"] = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    decoder["rope_theta"] = rope["rope_theta"] if "rope_theta" in rope else text.rope_theta
    decoder["mrope_section"] = rope.get("mrope_section")
    found = {"decoder": decoder}
    vision = getattr(config, "vision_config", None)
    if vision is None:
        return found
    # The names of the two tokens changed between versions.
    for kind in ("image", "video"):
        found[f"{kind}_token"] = getattr(config, f"{kind}_token_id", None) or getattr(config, f"{kind}_token_index")
    keys = {
        "qwen2_5_vl": ("hidden_size", "depth", "num_heads", "intermediate_size", "out_hidden_size", "patch_size", "temporal_patch_size",
                       "spatial_merge_size", "window_size", "fullatt_block_indexes", "tokens_per_second"),
        "qwen3_vl": ("hidden_size", "depth", "num_heads", "intermediate_size", "out_hidden_size", "patch_size", "temporal_patch_size",
                     "spatial_merge_size", "num_position_embeddings", "deepstack_visual_indexes"),
        "llava_onevision": ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size",
                            "layer_norm_eps"),
    }[config.model_type]
    found["vision"] = {key: getattr(vision, key) for key in keys}
    if config.model_type == "llava_onevision":
        found["vision"]["feature_layer"] = config.vision_feature_layer
        found["vision"]["projector_bias"] = getattr(config, "multimodal_projector_bias", True)
    return found


def save(folder: str) -> dict:
    cases = {}
    for name, (kind, settings) in CASES.items():
        if not hasattr(transformers, kind) or (name.endswith("qwen3") and not hasattr(transformers, "Qwen3Config")):
            continue
        getattr(transformers, kind)(**json.loads(json.dumps(settings))).save_pretrained(folder)
        written = json.loads((pathlib.Path(folder) / "config.json").read_text())
        cases[name] = {"config": written, "values": values(transformers.AutoConfig.from_pretrained(folder))}
    return cases


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1:]:
            cases = {}
            for file in sys.argv[1:]:
                written = json.loads(pathlib.Path(file).read_text())
                (pathlib.Path(folder) / "config.json").write_text(json.dumps(written))
                cases[pathlib.Path(file).name] = {"values": values(transformers.AutoConfig.from_pretrained(folder))}
        else:
            cases = save(folder)
    json.dump({"version": transformers.__version__, "cases": cases}, sys.stdout)


main()
