"""Weights in 8 and 4 bits: single layers in every published packing with the numbers they stand for, and a small
model in each of the schemes.

compressed-tensors packs and widens its own formats; fp8, AWQ and GPTQ are packed here by their published layouts and
widened by their formulas."""

import json
import shutil

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from . import family_text, measure
from .family_qwen2_5_vl import CASES, MODELS
from .paths import FIXTURES, link, write_json

FOLDER = FIXTURES / "quantized"
LAYER = "model.layers.0.mlp.up_proj"


def random_weight(n: int, k: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, k, generator=generator) * torch.rand(n, 1, generator=generator) * 2


# ---- compressed-tensors

def power_of_two(scale: torch.Tensor) -> torch.Tensor:
    """The next larger one: weights are then exact in 16 bits, and widened ones compute what packed ones do."""
    return torch.exp2(torch.ceil(torch.log2(scale)))


def compressed(weight: torch.Tensor, args: dict, form: str, groups: torch.Tensor | None = None,
               exact: bool = False) -> tuple[dict, torch.Tensor]:
    """Packed tensors of one layer and what the package makes of them."""
    args = QuantizationArgs(**args)
    n, k = weight.shape
    parts = weight[:, torch.argsort(groups, stable=True)] if groups is not None else weight
    if args.strategy == "group":
        parts = parts.reshape(n, -1, args.group_size)
        low, high = parts.amin(-1), parts.amax(-1)
    elif args.strategy == "channel":
        low, high = parts.amin(-1, keepdim=True), parts.amax(-1, keepdim=True)
    else:
        low, high = parts.amin().reshape(1), parts.amax().reshape(1)
    scale, zero = calculate_qparams(low, high, args)
    if exact:
        scale, half = power_of_two(scale), 2 ** (args.num_bits - 1)
        zero = torch.clamp(torch.round(-low / scale) - half, -half, half - 1).to(torch.int8)
    scale = scale.to(torch.bfloat16)
    zero = None if args.symmetric else zero
    compressor = BaseCompressor.load_from_registry(form)
    state = {"weight": weight, "weight_scale": scale}
    if zero is not None:
        state["weight_zero_point"] = zero.to(torch.int8)
    if groups is not None:
        state["weight_g_idx"] = groups.to(torch.int32)
    options = {"scale": scale, "zero_point": zero, "args": args, "g_idx": groups}
    expected = dequantize(x_q=quantize(x=weight, dtype=args.pytorch_dtype(), **options), **options)
    packed = compressor.compress_weight(
        weight=weight, scale=scale, zero_point=zero, g_idx=groups, quantization_args=args
    )
    result = {"weight_scale": scale, **packed}
    if groups is not None:
        result["weight_g_idx"] = groups.to(torch.int32)
    if zero is not None and "weight_zero_point" not in result:
        result["weight_zero_point"] = zero.to(torch.int8)
    return result, expected


def compressed_config(form: str, args: dict) -> dict:
    return {
        "config_groups": {"group_0": {"input_activations": None, "output_activations": None, "targets": ["Linear"],
                                      "weights": args}},
        "format": form, "ignore": ["lm_head"], "kv_cache_scheme": None, "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


# ---- fp8

def fp8(weight: torch.Tensor, block: tuple[int, int], exact: bool = False) -> tuple[dict, torch.Tensor]:
    n, k = weight.shape
    rows, columns = block
    scale = torch.zeros(-(-n // rows), -(-k // columns))
    stored = torch.zeros(n, k, dtype=torch.float8_e4m3fn)
    expected = torch.zeros(n, k, dtype=torch.bfloat16)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            part = (slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
            scale[i, j] = weight[part].abs().max() / 448
            if exact:
                scale[i, j] = power_of_two(scale[i, j])
            stored[part] = (weight[part] / scale[i, j]).to(torch.float8_e4m3fn)
            expected[part] = (stored[part].float() * scale[i, j]).to(torch.bfloat16)
    return {"weight": stored, "weight_scale_inv": scale}, expected


def fp8_config(block: tuple[int, int]) -> dict:
    return {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": list(block),
            "modules_to_not_convert": ["lm_head"]}


# ---- AWQ and GPTQ, both stored [inputs, outputs]

def integers(weight: torch.Tensor, bits: int, groups: torch.Tensor, symmetric: bool, exact: bool = False):
    """q [k, n], zero [groups, n] and scales f16 [groups, n]."""
    turned, top = weight.t().contiguous(), 2**bits - 1
    count = int(groups.max()) + 1
    zero = torch.zeros(count, weight.shape[0], dtype=torch.int32)
    scale = torch.zeros(count, weight.shape[0], dtype=torch.float16)
    q = torch.zeros(turned.shape, dtype=torch.int32)
    for group in range(count):
        rows = turned[groups == group]
        if symmetric:
            scale[group] = (rows.abs().amax(0) * 2 / top).half()
            zero[group] = 2 ** (bits - 1)
        else:
            scale[group] = ((rows.amax(0) - rows.amin(0)) / top).half()
        if exact:
            scale[group] = power_of_two(scale[group].float()).half()
        if not symmetric:
            zero[group] = (-rows.amin(0) / scale[group].float()).round().clamp(0, top).int()
        q[groups == group] = (rows / scale[group].float() + zero[group]).round().clamp(0, top).int()
    expected = ((q - zero[groups]).half() * scale[groups]).t().contiguous()
    return q, zero, scale, expected


def pack(values: torch.Tensor, bits: int, dim: int, order=None) -> torch.Tensor:
    """Place i of a word holds value order[i] of its 32 / bits."""
    values = values if dim == 1 else values.t()
    per = 32 // bits
    order = order or list(range(per))
    words = torch.zeros(values.shape[0], values.shape[1] // per, dtype=torch.int64)
    for place in range(per):
        words |= values[:, order[place] :: per].long() << (place * bits)
    words = torch.where(words >= 2**31, words - 2**32, words).int()
    return (words if dim == 1 else words.t()).contiguous()


def awq(weight: torch.Tensor, group: int, exact: bool = False) -> tuple[dict, torch.Tensor]:
    """A group of −1 is a whole channel."""
    k = weight.shape[1]
    q, zero, scale, expected = integers(weight, 4, torch.arange(k) // (k if group < 0 else group), False, exact)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return {"qweight": pack(q, 4, 1, order), "qzeros": pack(zero, 4, 1, order), "scales": scale}, expected


def gptq(weight: torch.Tensor, bits: int, group: int, *, symmetric: bool, act_order: bool, v2: bool, exact: bool = False):
    k = weight.shape[1]
    groups = torch.arange(k) // (k if group < 0 else group)
    if act_order:
        groups = groups[torch.randperm(k, generator=torch.Generator().manual_seed(5))]
    q, zero, scale, expected = integers(weight, bits, groups, symmetric, exact)
    stored = zero if v2 else (zero - 1) % 2**bits
    return {"qweight": pack(q, bits, 0), "qzeros": pack(stored, bits, 1), "scales": scale, "g_idx": groups.int()}, expected


def awq_config(group: int) -> dict:
    return {"bits": 4, "group_size": group, "quant_method": "awq", "version": "gemm", "zero_point": True,
            "modules_to_not_convert": ["visual"]}


def gptq_config(bits: int, group: int, **more) -> dict:
    return {"bits": bits, "group_size": group, "quant_method": "gptq", **more}


def layers():
    """name → (quantization_config, packed tensors, expected)."""
    def ct(form, n, k, seed, groups=None, **args):
        args = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": None, "symmetric": True, **args}
        return (compressed_config(form, args), *compressed(random_weight(n, k, seed), args, form, groups))

    act_groups = (torch.arange(64) // 16)[torch.randperm(64, generator=torch.Generator().manual_seed(3))]
    yield "fp8", (fp8_config((32, 64)), *fp8(random_weight(70, 150, 1), (32, 64)))
    yield "pack_group", ct("pack-quantized", 24, 64, 2, group_size=16)
    yield "pack_group_zeros", ct("pack-quantized", 20, 64, 3, group_size=16, symmetric=False)
    yield "pack_group_act_order", ct("pack-quantized", 24, 64, 4, act_groups, group_size=16, actorder="group")
    yield "pack_channel", ct("pack-quantized", 10, 37, 5, strategy="channel")
    yield "pack_channel_8", ct("pack-quantized", 10, 37, 6, strategy="channel", num_bits=8)
    yield "pack_channel_8_zeros", ct("pack-quantized", 9, 40, 7, strategy="channel", num_bits=8, symmetric=False)
    yield "int_channel", ct("int-quantized", 12, 33, 8, strategy="channel", num_bits=8)
    yield "int_channel_zeros", ct("int-quantized", 12, 33, 9, strategy="channel", num_bits=8, symmetric=False)
    yield "float_channel", ct("float-quantized", 12, 33, 10, strategy="channel", num_bits=8, type="float")
    yield "float_tensor", ct("float-quantized", 12, 33, 11, strategy="tensor", num_bits=8, type="float")
    weight = random_weight(24, 64, 12)
    yield "awq", (awq_config(16), *awq(weight, 16))
    yield "gptq", (gptq_config(4, 16, desc_act=False, sym=True, checkpoint_format="gptq"),
                   *gptq(weight, 4, 16, symmetric=True, act_order=False, v2=False))
    yield "gptq_act_order", (gptq_config(4, 16, desc_act=True, sym=False),
                             *gptq(weight, 4, 16, symmetric=False, act_order=True, v2=False))
    yield "gptq_8_v2", (gptq_config(8, -1, desc_act=False, sym=False, checkpoint_format="gptq_v2"),
                        *gptq(weight, 8, 64, symmetric=False, act_order=False, v2=True))


def make_layers() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, (config, packed, expected) in layers():
        folder = FOLDER / name
        write_json(folder / "config.json", {"model_type": "qwen3", "torch_dtype": "bfloat16", "quantization_config": config})
        save_file({f"{LAYER}.{part}": value.contiguous() for part, value in packed.items()},
                  str(folder / "model.safetensors"), metadata={"format": "pt"})
        save_file({"weight": expected.contiguous()}, str(folder / "expected.safetensors"), metadata={"format": "pt"})
        for file in folder.iterdir():
            file.chmod(0o644)


# ---- whole models

def make_model(name: str, config: dict, store) -> None:
    """The text model qwen3 with the decoder's projections stored by `store`, and cases of what it then computes."""
    source, folder = MODELS / "qwen3", MODELS / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(CASES / name, ignore_errors=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        link(folder / file, source / file)
    own = json.loads((source / "config.json").read_text())
    write_json(folder / "config.json", {**own, "quantization_config": config})
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
    tensors = {}
    for key, value in model.state_dict().items():
        if "_proj.weight" not in key:
            tensors[key] = value.to(torch.bfloat16).contiguous().clone()
            continue
        packed, expected = store(value)
        value.copy_(expected.float())
        for part, stored in packed.items():
            tensors[f"{key.removesuffix('.weight')}.{part}"] = stored.contiguous()
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    tokenizer = AutoTokenizer.from_pretrained(source)
    for case_name in family_text.cases(0):
        for variant in range(20):
            margin = family_text.run_case(model, tokenizer, name, case_name, family_text.cases(variant)[case_name])
            if margin >= measure.MARGIN:
                print(f"{name}/{case_name}: margin {margin:.4f} (variant {variant})", flush=True)
                break
        else:
            raise SystemExit(f"no variant of {name}/{case_name} has a clear greedy choice")


def make() -> None:
    make_layers()
    make_model("qwen3_fp8", fp8_config((32, 32)), lambda weight: fp8(weight, (32, 32), True))
    args = {"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": False}
    make_model("qwen3_w4", compressed_config("pack-quantized", args), lambda weight: compressed(weight, args, "pack-quantized", exact=True))
    args8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    make_model("qwen3_w8", compressed_config("int-quantized", args8), lambda weight: compressed(weight, args8, "int-quantized", exact=True))
    # Whole channels stay packed in memory; groups of 8, the largest that divides every side, are widened.
    make_model("qwen3_awq", awq_config(-1), lambda weight: awq(weight, -1, True))
    make_model("qwen3_awq_groups", awq_config(8), lambda weight: awq(weight, 8, True))
    make_model("qwen3_gptq", gptq_config(4, -1, desc_act=False, sym=True, checkpoint_format="gptq"),
               lambda weight: gptq(weight, 4, -1, symmetric=True, act_order=False, v2=False, exact=True))
    make_model("qwen3_gptq_order", gptq_config(4, 8, desc_act=True, sym=False, checkpoint_format="gptq_v2"),
               lambda weight: gptq(weight, 4, 8, symmetric=False, act_order=True, v2=True, exact=True))
