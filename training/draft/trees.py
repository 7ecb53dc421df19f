"""Accepted length of draft trees over answers that are known, every pass of an answer at once.

A pass begins at a token that is certain (its root) and checks a tree below it, as kinora grows it (src/generate/draft_tree.h): the likeliest
`width` followers of the root, `depth` times those of the likeliest `width` newest nodes, and in the end the likeliest `total` - 1 nodes of all.
Where a pass ends the next one begins, so the trees of all roots are grown together and the passes are walked afterwards.
"""
import dataclasses

import torch

from training.draft import steps


@dataclasses.dataclass(frozen=True)
class Shape:
    total: int = 30
    depth: int = 4
    width: int = 8

    @classmethod
    def of(cls, words):
        return cls(*map(int, words.split("-")))


def answer_rows(rows, n):
    """Branch rows of sample n that hold the tokens of its first branch's answer, the end token's left out, and what follows each."""
    wanted = rows.wanted[n] & (rows.branch[n] == rows.branch[n, 0])
    place = wanted.nonzero()[:, 0]
    said = torch.full_like(rows.branch[n], -1)
    said[rows.wanted[n]] = rows.said[_begin(rows, n):_begin(rows, n) + int(rows.wanted[n].sum())]
    return place[1:], said[place[1:]]


def _begin(rows, n):
    return int(rows.wanted[:n].sum())


def says_it_itself(rows, n):
    """Whether the target, left alone, gives sample n's answer word for word."""
    begin = _begin(rows, n)
    count = int((rows.wanted[n] & (rows.branch[n] == rows.branch[n, 0])).sum())
    return bool((rows.target[begin:begin + count].argmax(-1) == rows.said[begin:begin + count]).all())


class _Sample:
    """What the draft has of one sample: keys and values of the rows it may read, and the first level of every root."""

    def __init__(self, draft, rows, n, roots, see):
        first = rows.beginning
        own = (rows.branch[n] == rows.branch[n, 0]).nonzero()[:, 0]
        limit = int(rows.limit[n, own[0]])
        seen = torch.arange(limit, device=own.device)
        if not see:
            seen = seen[~rows.visual[n, :limit]]
        if rows.unread is not None:
            seen = seen[~rows.unread[n, seen]]
        read = torch.cat([seen, first + own])
        dtype = draft.fc.weight.dtype
        states = steps.take(rows.high[n:n + 1].to(dtype), rows.before[n:n + 1, read])
        z = draft.join(rows.embeddings[n:n + 1, read].to(dtype), states)
        z = torch.where(rows.visual[n:n + 1, read].unsqueeze(-1), rows.bridge[n:n + 1, read].to(dtype), z)
        self.cos, self.sin = draft.turns(rows.positions[:, n:n + 1, read])
        self.keys, self.values = (x[0] for x in draft.keys(z, self.cos, self.sin))  # [key heads, read, head size]
        self.at = len(seen) + roots - own[0]  # where a root stands among the rows that are read
        self.positions = rows.positions[:, n, first + roots]
        self.z = z[0]


def _attend(draft, q, keys, values, ends, more_keys, more_values):
    """q [nodes, heads, head size] over the first `ends` shared rows and its own [nodes, path, key heads, head size]"""
    spread = draft.config.heads // draft.config.key_heads
    scale = draft.config.head_size ** -0.5
    keys, values = keys.repeat_interleave(spread, 0), values.repeat_interleave(spread, 0)
    scores = torch.einsum("nhd,hkd->nhk", q, keys) * scale
    hidden = torch.arange(keys.shape[1], device=q.device)[None] >= ends[:, None]
    scores = scores.masked_fill(hidden[:, None], float("-inf"))
    more_keys, more_values = more_keys.repeat_interleave(spread, 2), more_values.repeat_interleave(spread, 2)
    scores = torch.cat([scores, torch.einsum("nhd,nphd->nhp", q, more_keys) * scale], 2).softmax(-1)
    shared = torch.einsum("nhk,hkd->nhd", scores[:, :, :keys.shape[1]], values)
    return shared + torch.einsum("nhp,nphd->nhd", scores[:, :, keys.shape[1]:], more_values)


def _run(draft, z, positions, sample, ends, path_keys, path_values):
    """Nodes z [nodes, hidden] after the rows of their roots and the rows on their paths; gives states and paths with themselves."""
    c, layer = draft.config, draft.layers[0]
    cos, sin = draft.turns(positions)
    keys, values = (x.transpose(1, 2)[0].unsqueeze(1) for x in draft.keys(z[None], cos[None], sin[None]))
    path_keys, path_values = torch.cat([path_keys, keys], 1), torch.cat([path_values, values], 1)
    x = layer.input_layernorm(z)
    q = draft._turned(layer.self_attn.q_proj(x), layer.self_attn.q_norm if c.qk_norm else None, cos, sin, c.heads)
    out = torch.cat([_attend(draft, *part, path_keys[i:i + 64], path_values[i:i + 64])
                     for i in range(0, len(z), 64)
                     for part in [(q[i:i + 64], sample.keys, sample.values, ends[i:i + 64])]])
    z = z + layer.self_attn.o_proj(out.flatten(1))
    h = layer.post_attention_layernorm(z)
    m = layer.mlp
    return z + m.down_proj(torch.nn.functional.silu(m.gate_proj(h)) * m.up_proj(h)), path_keys, path_values


def _followers(draft, head, s, width):
    log_probabilities = draft.logits(s, head).log_softmax(-1)
    best = log_probabilities.topk(min(width, log_probabilities.shape[-1]), -1)
    tokens = draft.d2t.long()[best.indices] if draft.config.own_vocabulary else best.indices
    return tokens, best.values


@torch.no_grad()
def trees(draft, rows, n, head, shape, see):
    """Of every root of sample n's answer (answer_rows): the kept nodes as {path of tokens}."""
    c = draft.config
    roots, _ = answer_rows(rows, n)
    count, width = len(roots), shape.width
    sample = _Sample(draft, rows, n, roots, see)
    none = sample.keys.new_zeros(count, 0, c.key_heads, c.head_size)
    # A root's own row is among the shared ones, so it needs no path: it is run once more as a path of one over the rows before it.
    s, path_keys, path_values = _run(draft, sample.z[sample.at], sample.positions, sample, sample.at, none, none)
    path_keys, path_values = path_keys[:, :0], path_values[:, :0]
    ends = sample.at + 1
    tokens, confidence = _followers(draft, head, s, width)
    # All nodes: paths as lists, level by level. `s` holds one row per parent that was run.
    found = [[((t,), p) for t, p in zip(tokens[b].tolist(), confidence[b].tolist())] for b in range(count)]
    level = [[(path, p, 0) for path, p in nodes] for nodes in found]  # path, confidence, which row of its root was its parent
    per_root = 1
    for step in range(shape.depth):
        chosen = [sorted(nodes, key=lambda node: -node[1])[:width] for nodes in level]
        size = min(len(nodes) for nodes in chosen)
        chosen = [nodes[:size] for nodes in chosen]
        parents = torch.tensor([[b * per_root + node[2] for node in nodes] for b, nodes in enumerate(chosen)], device=s.device).flatten()
        ids = torch.tensor([[node[0][-1] for node in nodes] for nodes in chosen], device=s.device).flatten()
        embeddings = torch.nn.functional.embedding(ids, head).to(s.dtype)
        if rows.whole is not None:
            embeddings = embeddings + rows.whole[n].to(s.dtype)
        z = draft.join(embeddings, s[parents])
        root = torch.arange(count, device=s.device).repeat_interleave(size)
        s, path_keys, path_values = _run(draft, z, sample.positions[:, root] + step + 1, sample, ends[root],
                                         path_keys[parents], path_values[parents])
        per_root = size
        tokens, more = _followers(draft, head, s, width)
        tokens, more = tokens.view(count, size, -1).tolist(), more.view(count, size, -1).tolist()
        level = [[(node[0] + (t,), node[1] + p, i) for i, node in enumerate(nodes) for t, p in zip(tokens[b][i], more[b][i])]
                 for b, nodes in enumerate(chosen)]
        for b in range(count):
            found[b] += [(path, p) for path, p, _ in level[b]]
    return [{path for path, _ in sorted(nodes, key=lambda node: -node[1])[:shape.total - 1]} for nodes in found]


def passes(kept, said):
    """(tokens, passes) of an answer: kept trees of its roots, and the tokens that follow the roots."""
    at, count = 0, 0
    while at < len(said):
        right = 0
        while at + right < len(said) and tuple(said[at:at + right + 1]) in kept[at]:
            right += 1
        at += right + 1
        count += 1
    return min(at, len(said)), count


def accepted(draft, rows, n, head, shape, see):
    """(tokens, passes) of sample n's first answer; the target's own token of a pass counts."""
    _, said = answer_rows(rows, n)
    return passes(trees(draft, rows, n, head, shape, see), said.tolist())
