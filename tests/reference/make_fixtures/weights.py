"""Random weights that make every part of a model matter, and the files they are stored in."""

import json
import math
import pathlib
import re

import torch
from safetensors.torch import save_file


def randomise(model: torch.nn.Module, seed: int, quiet_ids: list[int], dtype: torch.dtype) -> None:
    """Fills all parameters with values exact in `dtype`.

    Default initialisation (0.02) would leave attention flat and logits tied; here queries and keys are
    sharp, biases and norms are uneven, and special tokens (`quiet_ids`) never win the greedy choice.
    """
    generator = torch.Generator().manual_seed(seed)
    embeddings = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if re.search(r"language_model\.norm|model\.norm", name):
            value = noise
        elif parameter.dim() == 1 and "newline" not in name:
            value = 0.2 * noise + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
        elif parameter is embeddings or parameter is head:
            value = 0.4 * noise
            value[quiet_ids] *= 0.05
        else:
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 4
            gain = 1.6 if re.search(r"[qk]_proj|qkv", name) else 1.1
            value = gain / math.sqrt(fan_in) * noise
        parameter.data = value.to(dtype).float()


OLD_NAMES = {
    "qwen2_5_vl": [(r"^model\.visual\.", "visual."), (r"^model\.language_model\.", "model.")],
    "llava_onevision": [
        (r"^model\.language_model\.", "language_model.model."),
        (r"^lm_head\.", "language_model.lm_head."),
        (r"^model\.(vision_tower|multi_modal_projector|image_newline)", r"\1"),
    ],
}


def write(path: pathlib.Path, tensors: dict) -> None:
    save_file(tensors, str(path), metadata={"format": "pt"})
    path.chmod(0o644)


def save(model: torch.nn.Module, folder: pathlib.Path, dtype: torch.dtype, tied: bool, old_names: str | None, shards: int) -> None:
    tensors = {}
    for name, value in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        for pattern, replacement in OLD_NAMES.get(old_names or "", []):
            changed = re.sub(pattern, replacement, name)
            if changed != name:
                name = changed
                break
        tensors[name] = value.detach().to(dtype).contiguous().clone()
    folder.mkdir(parents=True, exist_ok=True)
    if shards == 1:
        write(folder / "model.safetensors", tensors)
        return
    names = list(tensors)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    weight_map, part, used = {}, {}, 0
    groups: list[dict] = []
    for name in names:
        part[name] = tensors[name]
        used += tensors[name].numel() * tensors[name].element_size()
        if used >= total / shards and len(groups) < shards - 1:
            groups.append(part)
            part, used = {}, 0
    groups.append(part)
    for i, group in enumerate(groups):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        write(folder / file, group)
        weight_map.update({name: file for name in group})
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
