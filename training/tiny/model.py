"""The bundled model: Qwen2.5-VL's architecture, small, with Hugging Face's parameter names.

Training runs a shared prefix (system prompt, video, passages) once and many questions as branches over
it: a branch sees the prefix up to its own limit and itself. `Model.branches` does that in one call;
`Model.prefill` and `Model.step` answer one question with a key/value cache.
"""
import dataclasses
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Config:
    vocabulary: int = 1280
    hidden: int = 384
    layers: int = 7
    heads: int = 6
    key_heads: int = 2
    mlp: int = 512
    theta: float = 1e6
    sections: tuple = (8, 12, 12)
    vision_hidden: int = 256
    vision_layers: int = 4
    vision_heads: int = 4
    vision_mlp: int = 512
    full_attention: tuple = (1, 3)
    window: int = 4  # merged tokens along a window's side (112 pixels)
    epsilon: float = 1e-6


class _Weights(nn.Module):
    """A module with just the named parameters, so that state dict keys match the published layout."""

    def __init__(self, *shape, bias=True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape))
        self.bias = nn.Parameter(torch.zeros(shape[0])) if bias else None


def _norm(width):
    w = _Weights(width, bias=False)
    nn.init.ones_(w.weight)
    return w


def _mlp(width, inner, bias):
    return nn.ModuleDict(dict(gate_proj=_Weights(inner, width, bias=bias), up_proj=_Weights(inner, width, bias=bias),
                              down_proj=_Weights(width, inner, bias=bias)))


def rms(x, weight, epsilon=1e-6):
    f = x.float()
    return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype) * weight.to(x.dtype)


def rotate(x, cos, sin):
    """x [..., heads, 64]; cos, sin broadcast over heads"""
    f = x.float()
    half = x.shape[-1] // 2
    turned = torch.cat((-f[..., half:], f[..., :half]), -1)
    return (f * cos + turned * sin).to(x.dtype)


def linear(x, w, b=None):
    return F.linear(x, w.to(x.dtype), None if b is None else b.to(x.dtype))


def vision_before(x, norm, qkv_w, qkv_b, cos, sin):
    """x [P, patches, D] -> q, k, v [P, heads, patches, 64]"""
    p, n, d = x.shape
    q, k, v = linear(rms(x, norm), qkv_w, qkv_b).view(p, n, 3, d // 64, 64).unbind(2)
    return rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2), v.transpose(1, 2)


def vision_after(x, o, proj_w, proj_b, norm, gate_w, gate_b, up_w, up_b, down_w, down_b):
    x = x + linear(o, proj_w, proj_b)
    h = rms(x, norm)
    return x + linear(F.silu(linear(h, gate_w, gate_b)) * linear(h, up_w, up_b), down_w, down_b)


def layer_before(x, norm, q_w, q_b, k_w, k_b, v_w, v_b, cos, sin):
    """x [rows, D] -> q [rows, heads, 64], k, v [rows, key heads, 64]"""
    h, n = rms(x, norm), x.shape[0]
    q = rotate(linear(h, q_w, q_b).view(n, -1, 64), cos, sin)
    k = rotate(linear(h, k_w, k_b).view(n, -1, 64), cos, sin)
    return q, k, linear(h, v_w, v_b).view(n, -1, 64)


def layer_after(x, o, o_w, norm, gate_w, up_w, down_w):
    x = x + linear(o, o_w)
    h = rms(x, norm)
    return x + linear(F.silu(linear(h, gate_w)) * linear(h, up_w), down_w)


def _compiled(piece, sizes, **options):
    """Compiles `piece` once for any number of rows; sizes: {argument: its dimensions that change}."""
    torch.fx.experimental._config.use_duck_shape = False  # sizes that happen to agree stay independent
    fast = torch.compile(piece, **options)

    def run(*arguments):
        for i, dimensions in sizes.items():
            for d in dimensions:
                torch._dynamo.maybe_mark_dynamic(arguments[i], d)
        return fast(*arguments)
    return run


class Model(nn.Module):
    def __init__(self, config=Config(), compiled=False):
        super().__init__()
        c = self.config = config
        key_width = c.key_heads * 64
        self.model = nn.Module()
        self.model.embed_tokens = _Weights(c.vocabulary, c.hidden, bias=False)
        self.model.layers = nn.ModuleList()
        for _ in range(c.layers):
            self.model.layers.append(nn.ModuleDict(dict(
                input_layernorm=_norm(c.hidden), post_attention_layernorm=_norm(c.hidden), mlp=_mlp(c.hidden, c.mlp, False),
                self_attn=nn.ModuleDict(dict(
                    q_proj=_Weights(c.hidden, c.hidden), k_proj=_Weights(key_width, c.hidden),
                    v_proj=_Weights(key_width, c.hidden), o_proj=_Weights(c.hidden, c.hidden, bias=False))))))
        self.model.norm = _norm(c.hidden)
        v, merged = c.vision_hidden, 4 * c.vision_hidden
        self.visual = nn.Module()
        self.visual.patch_embed = nn.ModuleDict(dict(proj=_Weights(v, 3, 2, 14, 14, bias=False)))
        self.visual.blocks = nn.ModuleList()
        for _ in range(c.vision_layers):
            self.visual.blocks.append(nn.ModuleDict(dict(
                norm1=_norm(v), norm2=_norm(v), mlp=_mlp(v, c.vision_mlp, True),
                attn=nn.ModuleDict(dict(qkv=_Weights(3 * v, v), proj=_Weights(v, v))))))
        self.visual.merger = nn.ModuleDict(dict(
            ln_q=_norm(v), mlp=nn.ModuleDict({"0": _Weights(merged, merged), "2": _Weights(c.hidden, merged)})))
        for name, p in self.named_parameters():
            if p.dim() > 1:
                deep = c.vision_layers if name.startswith("visual") else c.layers
                small = ("o_proj" in name or "down_proj" in name or "attn.proj" in name)
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * deep) if small else 1))
        self._compiled = (vision_before, vision_after, layer_before, layer_after)
        if compiled:
            self._compiled = (_compiled(vision_before, {0: (0, 1), 4: (0,), 5: (0,)}), _compiled(vision_after, {0: (0, 1), 1: (0, 1)}),
                              _compiled(layer_before, {0: (0,), 8: (0,), 9: (0,)}), _compiled(layer_after, {0: (0,), 1: (0,)}))
        self._grids, self._axes = {}, {}

    # -- vision
    def _grid(self, rows, columns, device):
        """cos, sin [patches, 1, 64] and the window mask [patches, patches] of one frame pair."""
        key = (rows, columns, device)
        if key not in self._grids:
            a, b, i, j = torch.meshgrid(torch.arange(rows), torch.arange(columns), torch.arange(2), torch.arange(2), indexing="ij")
            row, column = (a * 2 + i).reshape(-1), (b * 2 + j).reshape(-1)
            inverse = 1.0 / (10000.0 ** (torch.arange(0, 32, 2, dtype=torch.float32) / 32))
            angle = torch.cat([row[:, None] * inverse, column[:, None] * inverse], 1)
            angle = torch.cat([angle, angle], 1)
            side = 2 * self.config.window
            window = row // side * 1000 + column // side
            mask = window[:, None] == window[None, :]
            self._grids[key] = (angle.cos()[:, None].to(device), angle.sin()[:, None].to(device),
                                None if mask.all() else mask.to(device))
        return self._grids[key]

    def look(self, patches, rows, columns, fast=False):
        """patches [pairs, rows*columns*4, 1176] -> visual tokens [pairs, rows*columns, hidden]"""
        before, after = self._compiled[:2] if fast else (vision_before, vision_after)
        cos, sin, window = self._grid(rows, columns, patches.device)
        v = self.visual
        x = linear(patches, v.patch_embed.proj.weight.reshape(self.config.vision_hidden, -1))
        n, count, _ = x.shape
        for i, b in enumerate(v.blocks):
            a, m = b.attn, b.mlp
            q, k, w = before(x, b.norm1.weight, a.qkv.weight, a.qkv.bias, cos, sin)
            mask = None if i in self.config.full_attention else window
            o = F.scaled_dot_product_attention(q, k, w, attn_mask=mask).transpose(1, 2).reshape(n, count, -1)
            x = after(x, o, a.proj.weight, a.proj.bias, b.norm2.weight, m.gate_proj.weight, m.gate_proj.bias,
                      m.up_proj.weight, m.up_proj.bias, m.down_proj.weight, m.down_proj.bias)
        g = v.merger
        x = rms(x, g.ln_q.weight).reshape(n, count // 4, -1)
        return linear(F.gelu(linear(x, g.mlp["0"].weight, g.mlp["0"].bias)), g.mlp["2"].weight, g.mlp["2"].bias)

    # -- text
    def turns(self, positions):
        """positions [3, rows] -> cos, sin [rows, 1, 64]"""
        if positions.device not in self._axes:
            axis = torch.repeat_interleave(torch.arange(3), torch.tensor(self.config.sections))
            inverse = 1.0 / (self.config.theta ** (torch.arange(0, 64, 2, dtype=torch.float32) / 64))
            self._axes[positions.device] = axis.to(positions.device), inverse.to(positions.device)
        axis, inverse = self._axes[positions.device]
        angle = positions.float()[axis].T * inverse
        angle = torch.cat([angle, angle], -1)[:, None]
        return angle.cos(), angle.sin()

    def embed(self, ids):
        return F.embedding(ids, self.model.embed_tokens.weight)

    def _table_rows(self, ids, dtype):
        """Embeddings as a product: its gradient needs neither sorting nor thousands of adds to one row."""
        if not torch.is_grad_enabled():
            return self.embed(ids).to(dtype)
        one = torch.arange(self.config.vocabulary, device=ids.device) == ids.unsqueeze(-1)
        return one.to(dtype) @ self.model.embed_tokens.weight.to(dtype)

    def _before(self, run, layer, x, cos, sin):
        a = layer.self_attn
        return run(x, layer.input_layernorm.weight, a.q_proj.weight, a.q_proj.bias, a.k_proj.weight, a.k_proj.bias,
                   a.v_proj.weight, a.v_proj.bias, cos, sin)

    def _after(self, run, layer, x, o):
        m = layer.mlp
        return run(x, o, layer.self_attn.o_proj.weight, layer.post_attention_layernorm.weight, m.gate_proj.weight,
                   m.up_proj.weight, m.down_proj.weight)

    def logits(self, x):
        return linear(rms(x, self.model.norm.weight), self.model.embed_tokens.weight).float()

    def _spread(self, k, batch):
        """[batch * rows, key heads, 64] -> [batch, heads, rows, 64]"""
        c = self.config
        k = k.view(batch, -1, c.key_heads, 1, 64).expand(-1, -1, -1, c.heads // c.key_heads, -1)
        return k.reshape(batch, k.shape[1], c.heads, 64).transpose(1, 2)

    def branches(self, visual, b, fast=False, taps=None):
        """visual [batch, tokens, hidden] at rows b["visual_rows"]; returns [batch * branch rows, hidden] before the last norm.

        taps: a dict whose keys are layers; their outputs [batch, prefix + branch rows, hidden] are put there, for a draft to learn from.
        """
        before, after = self._compiled[2:] if fast else (layer_before, layer_after)
        batch, prefix = b["prefix_ids"].shape
        rows = b["ids"].shape[1]
        total, dtype, width = prefix + rows, visual.dtype, self.config.hidden
        start = self._table_rows(b["prefix_ids"], dtype).reshape(batch * prefix, width)
        start = start.index_copy(0, b["visual_rows"].reshape(-1), visual.reshape(-1, width)).view(batch, prefix, width)
        x = torch.cat([start, self._table_rows(b["ids"], dtype)], 1).reshape(batch * total, width)
        positions = torch.cat([b["prefix_positions"], b["positions"].unsqueeze(0).expand(3, -1, -1)], 2)
        cos, sin = self.turns(positions.reshape(3, -1))
        mask = branch_mask(b, prefix).to(dtype).expand(batch, self.config.heads, rows, total)
        for i, layer in enumerate(self.model.layers):
            q, k, v = self._before(before, layer, x, cos, sin)
            q = q.view(batch, total, -1, 64).transpose(1, 2)
            k, v = self._spread(k, batch), self._spread(v, batch)
            o1 = F.scaled_dot_product_attention(q[:, :, :prefix], k[:, :, :prefix], v[:, :, :prefix], is_causal=True)
            o2 = F.scaled_dot_product_attention(q[:, :, prefix:], k, v, attn_mask=mask)
            o = torch.cat([o1, o2], 2).transpose(1, 2).reshape(batch * total, width)
            x = self._after(after, layer, x, o)
            if taps is not None and i in taps:
                taps[i] = x.view(batch, total, width)
        return x.view(batch, total, width)[:, prefix:].reshape(batch * rows, width)

    # -- one conversation with a cache
    def prefill(self, x, positions, cache=None):
        """x [rows, hidden], positions [3, rows] -> hidden [rows, hidden]; cache: list of (k, v) per layer, extended in place."""
        cache = [] if cache is None else cache
        cos, sin = self.turns(positions)
        for i, layer in enumerate(self.model.layers):
            q, k, v = self._before(layer_before, layer, x, cos, sin)
            if i < len(cache):
                k, v = torch.cat([cache[i][0], k]), torch.cat([cache[i][1], v])
                cache[i] = (k, v)
            else:
                cache.append((k, v))
            n, all_rows = q.shape[0], k.shape[0]
            mask = None
            if n > 1 and all_rows > n:
                mask = torch.ones(n, all_rows, dtype=torch.bool, device=x.device).tril(all_rows - n)
            o = F.scaled_dot_product_attention(q.transpose(0, 1)[None], self._spread(k, 1), self._spread(v, 1), attn_mask=mask,
                                               is_causal=n > 1 and mask is None)
            x = self._after(layer_after, layer, x, o[0].transpose(0, 1).reshape(n, -1))
        return x, cache

    @torch.no_grad()
    def answer(self, cache, ids, position, end, limit=256):
        """Greedy answer to the tokens `ids` from `position` on, over a copy of `cache`."""
        cache, out = list(cache), []
        device = self.model.embed_tokens.weight.device
        dtype = cache[0][0].dtype
        ids = torch.as_tensor(ids, device=device)
        while len(out) < limit:
            p = torch.arange(position, position + len(ids), device=device).expand(3, -1)
            x, cache = self.prefill(self.embed(ids).to(dtype), p, cache)
            position += len(ids)
            ids = self.logits(x[-1:]).argmax(-1)
            if int(ids) == end:
                break
            out.append(int(ids))
        return out

    # -- files
    def load(self, directory):
        from safetensors.torch import load_file
        weights = {}
        for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
            weights.update(load_file(str(path)))
        if not weights:
            raise SystemExit(f"{directory}: no *.safetensors there")
        self.load_state_dict({k: v.float() for k, v in weights.items()})
        return self


def branch_mask(b, prefix):
    """Additive mask [batch, 1, branch rows, prefix + branch rows]: the prefix up to each row's limit, and the row's own branch."""
    branch, device = b["branch"], b["branch"].device
    rows = branch.shape[1]
    causal = torch.ones(rows, rows, dtype=torch.bool, device=device).tril()
    own = (branch[:, :, None] == branch[:, None, :]) & causal
    seen = torch.arange(prefix, device=device).view(1, 1, -1) < b["limit"].unsqueeze(-1)
    allowed = torch.cat([seen, own], 2).unsqueeze(1)
    return torch.zeros(allowed.shape, device=device).masked_fill_(~allowed, float("-inf"))


def read_config(directory):
    """The Config of a model directory in Hugging Face form."""
    t = json.loads((pathlib.Path(directory) / "config.json").read_text())
    v = t["vision_config"]
    return Config(t["vocab_size"], t["hidden_size"], t["num_hidden_layers"], t["num_attention_heads"], t["num_key_value_heads"],
                  t["intermediate_size"], t["rope_theta"], tuple(t["rope_scaling"]["mrope_section"]), v["hidden_size"], v["depth"],
                  v["num_heads"], v["intermediate_size"], tuple(v["fullatt_block_indexes"]), v["window_size"] // 28)
