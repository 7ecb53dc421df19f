"""A draft for any target: one decoder layer over FC(embedding + state), with the tensor names that kinora loads.

    z[t] = FC(embedding(x[t]) | state[t - 1]),  s[t] = layer(z[t]),  p(x[t + 1]) = head(norm(s[t]))

`state` is the target's output of its second-to-last layer at the text token before; while guessing on, the draft's own s takes its place.
Sizes come from the target's config.json. The embeddings and, unless the vocabulary is reduced, the head are the target's.
"""
import dataclasses
import json
import pathlib

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Config:
    hidden: int
    heads: int
    key_heads: int
    head_size: int
    mlp: int
    vocabulary: int
    target_layers: int
    theta: float
    sections: tuple = ()   # of head_size / 2 frequencies: time, height, width; empty: positions have one axis
    scaling: dict = dataclasses.field(default_factory=dict)  # rope_scaling as the target's config has it
    qkv_bias: bool = False
    qk_norm: bool = False
    epsilon: float = 1e-6
    own_vocabulary: int = 0

    @property
    def state_layer(self):
        return self.target_layers - 2


def config_of(directory, own_vocabulary=0):
    """The draft's sizes for the target in a directory as Hugging Face publishes it."""
    top = json.loads((pathlib.Path(directory) / "config.json").read_text())
    t = {**top, **top.get("text_config", {})}
    kind = t["model_type"]
    rope = t.get("rope_parameters") or t.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) not in ("default", "mrope"):
        raise SystemExit(f"{directory}: rope of type {rope.get('rope_type', rope.get('type'))} is not trained here yet")
    heads = t["num_attention_heads"]
    return Config(t["hidden_size"], heads, t.get("num_key_value_heads", heads), t.get("head_dim") or t["hidden_size"] // heads,
                  t["intermediate_size"], t["vocab_size"], t["num_hidden_layers"],
                  rope.get("rope_theta") or t.get("rope_theta", 1e4), tuple(rope.get("mrope_section", ())),
                  {k: v for k, v in rope.items() if k in ("type", "rope_type", "mrope_section")},
                  qkv_bias="qwen2" in kind or "llava" in kind, qk_norm="qwen3" in kind, epsilon=t.get("rms_norm_eps", 1e-6),
                  own_vocabulary=own_vocabulary)


def rms(x, weight, epsilon):
    f = x.float()
    return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype) * weight.to(x.dtype)


class Linear(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class Norm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x):
        return rms(x, self.weight, self.epsilon)


class Draft(nn.Module):
    def __init__(self, config):
        super().__init__()
        c = self.config = config
        inner, key = c.heads * c.head_size, c.key_heads * c.head_size
        self.fc = Linear(2 * c.hidden, c.hidden, bias=False)
        attention = dict(q_proj=Linear(c.hidden, inner, bias=c.qkv_bias), k_proj=Linear(c.hidden, key, bias=c.qkv_bias),
                         v_proj=Linear(c.hidden, key, bias=c.qkv_bias), o_proj=Linear(inner, c.hidden, bias=False))
        if c.qk_norm:
            attention.update(q_norm=Norm(c.head_size, c.epsilon), k_norm=Norm(c.head_size, c.epsilon))
        mlp = dict(gate_proj=Linear(c.hidden, c.mlp, bias=False), up_proj=Linear(c.hidden, c.mlp, bias=False),
                   down_proj=Linear(c.mlp, c.hidden, bias=False))
        self.layers = nn.ModuleList([nn.ModuleDict(dict(
            input_layernorm=Norm(c.hidden, c.epsilon), post_attention_layernorm=Norm(c.hidden, c.epsilon),
            self_attn=nn.ModuleDict(attention), mlp=nn.ModuleDict(mlp)))])
        self.norm = Norm(c.hidden, c.epsilon)
        if c.own_vocabulary:
            self.lm_head = Linear(c.hidden, c.own_vocabulary, bias=False)
            self.register_buffer("d2t", torch.zeros(c.own_vocabulary, dtype=torch.int32))
        # Typical sizes of embeddings and states. FC learns on inputs of size one and gives states; a saved FC has the sizes in its weights.
        self.sizes = (1.0, 1.0)

    def begin_like(self, layer, norm, sizes):
        """Starts from the target's last layer and final norm (their tensors by name); FC passes both its inputs on.

        sizes: root mean squares of the target's embeddings and states.
        """
        self.sizes = tuple(sizes)
        own = dict(self.layers[0].named_parameters())
        with torch.no_grad():
            for name, weight in layer.items():
                own[name].copy_(weight)
            self.norm.weight.copy_(norm)
            eye = torch.eye(self.config.hidden)
            self.fc.weight.copy_(torch.cat([0.7 * eye, 0.7 * eye], 1) + 0.01 * torch.randn(self.fc.weight.shape))

    def scale_inputs(self, sizes):
        """A loaded FC is for inputs as they are; from here on it learns on inputs of size one and gives what it gave."""
        small, large = sizes
        with torch.no_grad():
            self.fc.weight[:, :self.config.hidden] *= small / large
        self.sizes = (small, large)

    def turns(self, positions):
        """positions [3, ...] -> cos, sin [..., 1, head size]"""
        c = self.config
        half = c.head_size // 2
        axis = torch.repeat_interleave(torch.arange(3), torch.tensor(c.sections)) if c.sections else torch.zeros(half, dtype=torch.long)
        inverse = 1.0 / (c.theta ** (torch.arange(0, c.head_size, 2, dtype=torch.float32) / c.head_size))
        angle = positions.float()[axis.to(positions.device)].movedim(0, -1) * inverse.to(positions.device)
        angle = torch.cat([angle, angle], -1).unsqueeze(-2)
        return angle.cos(), angle.sin()

    def join(self, embeddings, states):
        small, large = self.sizes
        return large * self.fc(torch.cat([embeddings / small, states / large], -1))

    def plain_fc(self):
        """The weights of FC for inputs as they are."""
        small, large = self.sizes
        return torch.cat([self.fc.weight[:, :self.config.hidden] * (large / small), self.fc.weight[:, self.config.hidden:]], 1)

    def _turned(self, x, weight, cos, sin, heads):
        x = x.unflatten(-1, (heads, self.config.head_size))
        if weight is not None:
            x = weight(x)
        f = x.float()
        half = f.shape[-1] // 2
        return (f * cos + torch.cat((-f[..., half:], f[..., :half]), -1) * sin).to(x.dtype)

    def keys(self, z, cos, sin):
        """z [batch, rows, hidden] -> keys and values [batch, key heads, rows, head size]"""
        c, layer = self.config, self.layers[0]
        a, x = layer.self_attn, layer.input_layernorm(z)
        k = self._turned(a.k_proj(x), a.k_norm if c.qk_norm else None, cos, sin, c.key_heads)
        return k.transpose(1, 2), a.v_proj(x).unflatten(-1, (c.key_heads, c.head_size)).transpose(1, 2)

    def run(self, z, cos, sin, k, v, mask):
        """The layer's output for rows z over given keys and values; mask [batch, 1, rows, keys], true where one reads the other."""
        c, layer = self.config, self.layers[0]
        a, m = layer.self_attn, layer.mlp
        x = layer.input_layernorm(z)
        q = self._turned(a.q_proj(x), a.q_norm if c.qk_norm else None, cos, sin, c.heads).transpose(1, 2)
        spread = c.heads // c.key_heads
        o = F.scaled_dot_product_attention(q, k.repeat_interleave(spread, 1), v.repeat_interleave(spread, 1), attn_mask=mask)
        z = z + a.o_proj(o.transpose(1, 2).flatten(2))
        h = layer.post_attention_layernorm(z)
        return z + m.down_proj(F.silu(m.gate_proj(h)) * m.up_proj(h))

    def logits(self, s, head):
        """Over the target's vocabulary with its head [vocabulary, hidden], or over the draft's own."""
        s = self.norm(s)
        return (self.lm_head(s) if self.config.own_vocabulary else F.linear(s, head.to(s.dtype))).float()


def with_own_head(draft, head, tokens):
    """A copy of a draft that guesses only the given tokens: its head begins as the target's rows of them."""
    tokens = torch.as_tensor(tokens)
    own = Draft(dataclasses.replace(draft.config, own_vocabulary=len(tokens)))
    own.load_state_dict(draft.state_dict() | {"lm_head.weight": head[tokens.to(head.device)].detach().float().cpu(),
                                              "d2t": tokens.to(torch.int32).cpu()})
    own.sizes = draft.sizes
    return own.to(draft.fc.weight.device)


def save(draft, directory):
    """What kinora loads: bf16 weights and a config.json."""
    from safetensors.torch import save_file
    c, directory = draft.config, pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    weights = draft.state_dict() | {"fc.weight": draft.plain_fc()}
    weights = {k: (v if k == "d2t" else v.detach().to(torch.bfloat16)).contiguous().cpu() for k, v in weights.items()}
    save_file(weights, str(directory / "model.safetensors"), metadata=dict(format="pt"))
    config = dict(model_type="sparrow", hidden_size=c.hidden, intermediate_size=c.mlp, num_attention_heads=c.heads,
                  num_key_value_heads=c.key_heads, head_dim=c.head_size, num_hidden_layers=1, vocab_size=c.vocabulary,
                  rms_norm_eps=c.epsilon, rope_theta=c.theta, hidden_act="silu", qkv_bias=c.qkv_bias, qk_norm=c.qk_norm, fc_bias=False,
                  target_num_hidden_layers=c.target_layers, target_state_layer=c.state_layer, torch_dtype="bfloat16")
    if c.scaling:
        config["rope_scaling"] = c.scaling
    if c.own_vocabulary:
        config["draft_vocab_size"] = c.own_vocabulary
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(directory):
    """A saved draft, for going on with it or comparing."""
    from safetensors.torch import load_file
    directory = pathlib.Path(directory)
    t = json.loads((directory / "config.json").read_text())
    rope = t.get("rope_scaling", {})
    draft = Draft(Config(t["hidden_size"], t["num_attention_heads"], t["num_key_value_heads"], t["head_dim"], t["intermediate_size"],
                         t["vocab_size"], t["target_num_hidden_layers"], t["rope_theta"], tuple(rope.get("mrope_section", ())), rope,
                         t["qkv_bias"], t["qk_norm"], t["rms_norm_eps"], t.get("draft_vocab_size", 0)))
    draft.load_state_dict({k: v if k == "d2t" else v.float() for k, v in load_file(str(directory / "model.safetensors")).items()})
    return draft
