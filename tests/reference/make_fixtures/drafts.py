"""Drafts as others publish them, with random weights, for a target of seven layers: what each of them guesses.

A slow and obvious reference in double precision. Nothing is kept from one guess to the next: every path of tokens is read
anew from the first token on. The formulas are those of the programs that EAGLE and EAGLE-3 were published with.
"""

import math
import shutil

import torch

from .paths import FIXTURES, link, write_json
from .templates import LLAMA3
from .weights import write

FOLDER = FIXTURES / "drafts" / "published"
BASE = 1000  # the first special token of the tokenizer
VOCABULARY, LAYERS = 1008, 7
TEXT, GUESSES = 17, 4
TREE = dict(total=15, depth=3, width=4)
TARGET = dict(hidden_size=44, num_attention_heads=5, num_key_value_heads=1, head_dim=12, intermediate_size=76, rms_norm_eps=1e-5,
              rope_theta=500000.0, vocab_size=VOCABULARY, hidden_act="silu", max_position_embeddings=2048, tie_word_embeddings=False)


def random_tensor(generator, *shape, gain=1.2, middle=0.0):
    """Values that bf16 holds exactly; matrices keep the size of what they multiply."""
    scale = gain / math.sqrt(shape[1]) if len(shape) == 2 else 0.2
    return (middle + scale * torch.randn(shape, generator=generator)).to(torch.bfloat16)


def random_layer(generator, c, read, prefix, norms):
    heads, keys, size, hidden, wide = (c[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "intermediate_size"))
    shapes = {"self_attn.q_proj": (heads * size, read), "self_attn.k_proj": (keys * size, read), "self_attn.v_proj": (keys * size, read),
              "self_attn.o_proj": (hidden, heads * size), "mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden),
              "mlp.down_proj": (hidden, wide)}
    made = {f"{prefix}{name}.weight": random_tensor(generator, *shape) for name, shape in shapes.items()}
    made.update({f"{prefix}{name}.weight": random_tensor(generator, hidden, middle=1.0) for name in norms})
    return made


def norm(x, weight, epsilon):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def turned(x, theta):
    """x [tokens, heads, size] at positions 0, 1, …"""
    size = x.shape[-1]
    inverse = theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * inverse
    cos, sin = (torch.cat([f(angle), f(angle)], -1)[:, None] for f in (torch.cos, torch.sin))
    halves = torch.cat([-x[..., size // 2:], x[..., :size // 2]], -1)
    return x * cos + halves * sin


def run_layer(w, prefix, c, rows, read):
    """One layer: `read` goes into attention, `rows` is what its results are added to."""
    count, size = rows.shape[0], c["head_dim"]
    parts = {name: (read @ w[f"{prefix}self_attn.{name}_proj.weight"].T).view(count, -1, size) for name in "qkv"}
    q, k = turned(parts["q"], c["rope_theta"]), turned(parts["k"], c["rope_theta"])
    each = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(each, 1), parts["v"].repeat_interleave(each, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(size)
    scores = scores.masked_fill(torch.triu(torch.ones(count, count, dtype=torch.bool), 1), -math.inf)
    mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(count, -1)
    rows = rows + mixed @ w[f"{prefix}self_attn.o_proj.weight"].T
    x = norm(rows, w[f"{prefix}post_attention_layernorm.weight"], c["rms_norm_eps"])
    gated = torch.nn.functional.silu(x @ w[f"{prefix}mlp.gate_proj.weight"].T) * (x @ w[f"{prefix}mlp.up_proj.weight"].T)
    return rows + gated @ w[f"{prefix}mlp.down_proj.weight"].T


class Target:
    def __init__(self, w):
        self.w = {name: value.double() for name, value in w.items()}

    def run(self, ids):
        """The rows before each layer and after the last, and the last normed."""
        w, c = self.w, TARGET
        rows = [w["model.embed_tokens.weight"][ids]]
        for i in range(LAYERS):
            read = norm(rows[-1], w[f"model.layers.{i}.input_layernorm.weight"], c["rms_norm_eps"])
            rows.append(run_layer(w, f"model.layers.{i}.", c, rows[-1], read))
        return rows, norm(rows[-1], w["model.norm.weight"], c["rms_norm_eps"])


class Eagle:
    """Rows are FC(embedding of a token, the target's normed state before it); the target's head speaks."""

    def __init__(self, config, w, target):
        self.c, self.w, self.target = config, {name: value.double() for name, value in w.items()}, target

    def told(self, ids):
        return self.target.run(ids)[1]

    def embed(self, ids):
        return self.w.get("embed_tokens.weight", self.target.w["model.embed_tokens.weight"])[ids]

    def out(self, ids, states):
        z = torch.cat([self.embed(ids), states], -1) @ self.w["fc.weight"].T + self.w.get("fc.bias", 0)
        return run_layer(self.w, "layers.0.", self.c, z, z)

    def said(self, row):
        return torch.log_softmax(row @ self.target.w["lm_head.weight"].T, -1)

    def after(self, text, path):
        """Log-probabilities of what follows: the states of all but the last token of the text are known."""
        states = self.told(torch.tensor(text))[:len(text) - 1]
        for i in range(len(path) + 1):
            ids = torch.tensor((text + path)[1:len(text) + i])
            last = self.out(ids, states)[-1]
            states = torch.cat([states, last[None]])
        return self.said(last)


class Eagle3(Eagle):
    """FC makes one state of those of three layers; attention reads the normed embedding beside it."""

    def __init__(self, config, w, target, prefix, boundaries):
        super().__init__(config, w, target)
        self.prefix, self.boundaries = prefix, boundaries

    def told(self, ids):
        rows = self.target.run(ids)[0]
        return torch.cat([rows[b] for b in self.boundaries], -1) @ self.w["fc.weight"].T

    def out(self, ids, states):
        epsilon = self.c["rms_norm_eps"]
        normed = norm(states, self.w[f"{self.prefix}hidden_norm.weight"], epsilon)
        read = torch.cat([norm(self.embed(ids), self.w[f"{self.prefix}input_layernorm.weight"], epsilon), normed], -1)
        return run_layer(self.w, self.prefix, self.c, normed if self.c.get("norm_before_residual") else states, read)

    def said(self, row):
        said = torch.log_softmax(norm(row, self.w["norm.weight"], self.c["rms_norm_eps"]) @ self.w["lm_head.weight"].T, -1)
        if "d2t" not in self.w:
            return said
        all_tokens = torch.full((VOCABULARY,), -math.inf, dtype=torch.float64)
        all_tokens[torch.arange(len(said)) + self.w["d2t"].long()] = said
        return all_tokens


def tree(draft, text):
    """The likeliest paths, as EAGLE-2 finds them: on from the likeliest nodes of the deepest level, and the best of all in the end."""
    level, found = [([], 0.0)], {}
    for _ in range(TREE["depth"] + 1):
        below = []
        for path, confidence in level:
            said = draft.after(text, path)
            for token in torch.topk(said, TREE["width"]).indices.tolist():
                below.append((path + [token], confidence + float(said[token])))
        found.update({tuple(path): confidence for path, confidence in below})
        level = sorted(below, key=lambda one: -one[1])[:TREE["width"]]
    ranked = sorted(found.items(), key=lambda one: -one[1])
    kept = ranked[:TREE["total"] - 1]
    margin = kept[-1][1] - ranked[len(kept)][1]
    assert margin > 1e-3, f"the tree is not clear: {margin}; use another seed"
    return sorted((path for path, _ in kept), key=len)


def write_draft(name, draft, config, w, seed):
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, BASE, (TEXT,), generator=generator).tolist()
    path = torch.randint(0, BASE, (GUESSES,), generator=generator).tolist()
    said = torch.stack([draft.after(text, path[:i]) for i in range(GUESSES + 1)])
    paths = tree(draft, text)
    places = {p: i for i, p in enumerate(paths)}
    case = dict(text=torch.tensor(text, dtype=torch.int32), path=torch.tensor(path, dtype=torch.int32), log_probabilities=said.float(),
                tree_ids=torch.tensor([p[-1] for p in paths], dtype=torch.int32),
                tree_parents=torch.tensor([places.get(p[:-1], -1) for p in paths], dtype=torch.int32))
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    # In f32, so that a GPU computes in f32 as well.
    write(folder / "model.safetensors", {key: value.float() if value.is_floating_point() else value for key, value in w.items()})
    write(folder / "case.safetensors", case)


def make_target(generator):
    hidden = TARGET["hidden_size"]
    w = {"model.embed_tokens.weight": random_tensor(generator, VOCABULARY, hidden, gain=3.0),
         "lm_head.weight": random_tensor(generator, VOCABULARY, hidden, gain=2.5),
         "model.norm.weight": random_tensor(generator, hidden, middle=1.0)}
    for i in range(LAYERS):
        w.update(random_layer(generator, TARGET, hidden, f"model.layers.{i}.", ("input_layernorm", "post_attention_layernorm")))
    folder, source = FOLDER / "target", FIXTURES / "tokenizers" / "llama"
    folder.mkdir(parents=True)
    write(folder / "model.safetensors", w)
    write_json(folder / "config.json", dict(TARGET, architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=LAYERS,
                                            bos_token_id=BASE, eos_token_id=[BASE + 1, BASE + 4]))
    write_json(folder / "generation_config.json", {"bos_token_id": BASE, "eos_token_id": [BASE + 1, BASE + 4], "do_sample": False})
    link(folder / "tokenizer.json", source / "tokenizer.json")
    shutil.copy(source / "tokenizer_config.json", folder)
    (folder / "chat_template.jinja").write_text(LLAMA3)
    return Target(w)


@torch.no_grad()
def make() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    generator = torch.Generator().manual_seed(61)
    target = make_target(generator)
    hidden = TARGET["hidden_size"]
    common = dict(TARGET, architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=1, bos_token_id=BASE, eos_token_id=BASE + 1)

    w = {"fc.weight": random_tensor(generator, hidden, 2 * hidden), "fc.bias": random_tensor(generator, hidden),
         "embed_tokens.weight": random_tensor(generator, VOCABULARY, hidden, gain=3.0)}
    w.update(random_layer(generator, common, hidden, "layers.0.", ("post_attention_layernorm",)))
    write_draft("eagle", Eagle(common, w, target), common, w, 71)

    own = 300  # tokens that the draft's own head knows, none twice
    config = dict(common, draft_vocab_size=own)
    tokens = torch.arange(own) * VOCABULARY // own
    tokens += torch.randint(0, VOCABULARY // own, (own,), generator=generator)
    known = torch.zeros(VOCABULARY, dtype=torch.bool)
    known[tokens] = True
    w = {"fc.weight": random_tensor(generator, hidden, 3 * hidden), "norm.weight": random_tensor(generator, hidden, middle=1.0),
         "lm_head.weight": random_tensor(generator, own, hidden, gain=2.5), "d2t": tokens - torch.arange(own), "t2d": known}
    w.update(random_layer(generator, config, 2 * hidden, "midlayer.", ("input_layernorm", "hidden_norm", "post_attention_layernorm")))
    write_draft("eagle3", Eagle3(config, w, target, "midlayer.", (2, LAYERS // 2, LAYERS - 3)), config, w, 72)

    # Narrower than its target, with a list of layers and the tensor names of later programs.
    narrow = 28
    config = dict(common, architectures=["LlamaForCausalLMEagle3"], hidden_size=narrow, target_hidden_size=hidden, norm_before_residual=True,
                  eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "use_aux_hidden_state": True})
    w = {"fc.weight": random_tensor(generator, narrow, 3 * hidden), "norm.weight": random_tensor(generator, narrow, middle=1.0),
         "lm_head.weight": random_tensor(generator, VOCABULARY, narrow, gain=2.5),
         "embed_tokens.weight": random_tensor(generator, VOCABULARY, narrow, gain=3.0)}
    w.update(random_layer(generator, config, 2 * narrow, "layers.0.", ("input_layernorm", "hidden_norm", "post_attention_layernorm")))
    write_draft("eagle3_narrow", Eagle3(config, w, target, "layers.0.", (2, 4, 6)), config, w, 73)
