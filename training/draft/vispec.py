"""ViSpec's kind of draft (Kang et al., 2025), to compare with: a small learned attention makes a few rows of all visual ones, which the draft reads
instead, and a feature of the whole video is added to the embedding of every text token. For ablate.py; kinora does not load such drafts.

A question about the first part of a video is answered, in training, from rows of all of it: the few rows are the same for all branches.
"""
import dataclasses
import json
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

from training.draft import model as drafts


class Adapter(nn.Module):
    """Visual embeddings [batch, rows, hidden] of which some are there -> [batch, queries, hidden], and one row for the whole [batch, hidden]."""

    def __init__(self, hidden, queries, heads, epsilon):
        super().__init__()
        self.heads = heads
        self.queries = nn.Parameter(torch.randn(queries, hidden))
        self.norm = drafts.Norm(hidden, epsilon)
        self.key, self.value, self.out, self.whole = (drafts.Linear(hidden, hidden, bias=False) for _ in range(4))
        nn.init.zeros_(self.whole.weight)  # text begins as it is

    def forward(self, visual, there):
        x = self.norm(visual)
        split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # noqa: E731
        some = there.any(1)
        mask = (there | ~some[:, None])[:, None, None]  # nothing is undefined where nothing is there
        found = F.scaled_dot_product_attention(split(self.queries.to(x.dtype).expand(len(x), -1, -1)), split(self.key(x)), split(self.value(x)),
                                               attn_mask=mask)
        few = self.out(found.transpose(1, 2).flatten(2)) * some[:, None, None]
        return few, self.whole(few.mean(1))


class Draft(drafts.Draft):
    def __init__(self, config, queries):
        super().__init__(config)
        self.adapter = Adapter(config.hidden, queries, 4, config.epsilon)
        self.scale = self.sizes  # of what the adapter gives, as FC's inputs are

    def see(self, rows):
        """A batch as this draft reads it: of all visual rows only as many as there are queries, evenly spaced, each with what its query found."""
        first, queries = rows.beginning, len(self.adapter.queries)
        visual = rows.visual[:, :first]
        few, whole = self.adapter(rows.embeddings[:, :first], visual)
        rank, count = visual.cumsum(1) - 1, visual.sum(1, keepdim=True).clamp(min=1)
        slot = torch.div(rank * queries, count, rounding_mode="floor")
        before = torch.div((rank - 1) * queries, count, rounding_mode="floor")
        read = visual & (slot != before)
        small, large = self.scale
        stands = torch.gather(few, 1, slot.clamp(0, queries - 1).unsqueeze(-1).expand(-1, -1, few.shape[-1])) * large
        bridge = torch.where(read.unsqueeze(-1), stands.to(rows.bridge.dtype), rows.bridge[:, :first])
        whole = (small * whole).to(rows.embeddings.dtype)
        return dataclasses.replace(
            rows, bridge=torch.cat([bridge, rows.bridge[:, first:]], 1), whole=whole,
            embeddings=torch.where(rows.visual.unsqueeze(-1), rows.embeddings, rows.embeddings + whole.unsqueeze(1)),
            unread=torch.cat([visual & ~read, torch.zeros_like(rows.visual[:, first:])], 1))


def like(draft, queries):
    """One that begins as another draft."""
    own = Draft(draft.config, queries)
    own.load_state_dict(draft.state_dict(), strict=False)
    own.sizes = own.scale = draft.sizes
    return own.to(draft.fc.weight.device)


def save(draft, directory):
    """The draft as others are saved, and what it has besides in files of its own."""
    from safetensors.torch import save_file
    directory = pathlib.Path(directory)
    plain = drafts.Draft(draft.config)
    plain.load_state_dict({k: v for k, v in draft.state_dict().items() if not k.startswith("adapter.")})
    plain.sizes = draft.sizes
    drafts.save(plain, directory)
    save_file({k: v.detach().to(torch.bfloat16).contiguous().cpu() for k, v in draft.adapter.state_dict().items()},
              str(directory / "adapter.safetensors"))
    (directory / "adapter.json").write_text(json.dumps(dict(queries=len(draft.adapter.queries), scale=draft.scale)) + "\n")


def load(directory):
    from safetensors.torch import load_file
    directory = pathlib.Path(directory)
    about = json.loads((directory / "adapter.json").read_text())
    own = like(drafts.load(directory), about["queries"])
    own.adapter.load_state_dict({k: v.float() for k, v in load_file(str(directory / "adapter.safetensors")).items()})
    own.scale = tuple(about["scale"])
    return own
