"""Why a draft may do without visual rows: what the bundled model still needs of them, layer by layer (figures 3 and 6 of Sparrow).

    python -m training.draft.premise --out premise.json

For every layer x: the share of right answers when the text cannot read visual rows from layer x on; the attention that the last token of a question
gives to visual rows there; and how much of their first states visual and text rows still have after it (cosine). Held-out questions.
"""
import argparse
import json
import pathlib

import torch
import torch.nn.functional as F

from training.tiny import batches, evaluate, model as models
from training.tiny.tokenizer import MODEL, Text
from training.world import render

FRAMES = {64: (16, 96), 1024: (2, 32)}  # frames: (videos of a batch, videos)
SMOKE_FRAMES = {16: (2, 2)}


def last_before(b):
    """Branch rows (flat) that stand right before an answer."""
    item = b["item_of"]
    first = torch.ones_like(item, dtype=torch.bool)
    first[1:] = item[1:] != item[:-1]
    return b["source"][first]


@torch.no_grad()
def run(model, visual, b, is_visual, hide_from, look=None):
    """Model.branches with the visual rows hidden from text of layer `hide_from` on; gives the branch rows' states.

    look: filled per layer with the attention that questions' last tokens give to visual rows, and with cosines.
    """
    batch, prefix = b["prefix_ids"].shape
    rows, width = b["ids"].shape[1], model.config.hidden
    total = prefix + rows
    start = model.embed(b["prefix_ids"]).to(visual.dtype).reshape(batch * prefix, width)
    start = start.index_copy(0, b["visual_rows"].reshape(-1), visual.reshape(-1, width)).view(batch, prefix, width)
    x = torch.cat([start, model.embed(b["ids"]).to(visual.dtype)], 1).reshape(batch * total, width)
    begin = x.view(batch, total, width).float()
    positions = torch.cat([b["prefix_positions"], b["positions"].unsqueeze(0).expand(3, -1, -1)], 2)
    cos, sin = model.turns(positions.reshape(3, -1))
    plain = models.branch_mask(b, prefix)
    hidden = torch.cat([is_visual, torch.zeros_like(b["ids"], dtype=torch.bool)], 1)
    blind = plain.masked_fill(hidden[:, None, None], float("-inf"))
    # Text among the beginning goes blind too: it is read by the branches.
    causal = torch.ones(prefix, prefix, dtype=torch.bool, device=x.device).tril()
    beginning = causal[None] & ~(is_visual[:, None, :] & ~is_visual[:, :, None])
    asked = last_before(b)
    for i, layer in enumerate(model.model.layers):
        q, k, v = model._before(models.layer_before, layer, x, cos, sin)
        q = q.view(batch, total, -1, 64).transpose(1, 2)
        k, v = model._spread(k, batch), model._spread(v, batch)
        mask = (blind if i >= hide_from else plain).to(x.dtype).expand(batch, model.config.heads, rows, total)
        if i >= hide_from:
            o1 = F.scaled_dot_product_attention(q[:, :, :prefix], k[:, :, :prefix], v[:, :, :prefix], attn_mask=beginning.unsqueeze(1))
        else:
            o1 = F.scaled_dot_product_attention(q[:, :, :prefix], k[:, :, :prefix], v[:, :, :prefix], is_causal=True)
        o2 = F.scaled_dot_product_attention(q[:, :, prefix:], k, v, attn_mask=mask)
        if look is not None:
            place, row = torch.div(asked, rows, rounding_mode="floor"), asked % rows
            given = []
            for n in range(batch):
                own = row[place == n]
                weights = torch.einsum("hqd,hkd->hqk", q[n, :, prefix + own].float(), k[n].float()) / 8.0
                weights = (weights + plain[n, 0, own]).softmax(-1)
                given.append((weights * hidden[n]).sum(-1).mean(0))
            look.setdefault("attention", []).append(torch.cat(given).mean().item())
        o = torch.cat([o1, o2], 2).transpose(1, 2).reshape(batch * total, width)
        x = model._after(models.layer_after, layer, x, o)
        if look is not None:
            same = F.cosine_similarity(x.view(batch, total, width).float(), begin, dim=-1)
            told = torch.cat([torch.zeros_like(is_visual), b["branch"] >= 0], 1)
            look.setdefault("visual", []).append(same[hidden].mean().item())
            look.setdefault("text", []).append(same[told].mean().item())
    return x.view(batch, total, width)[:, prefix:].reshape(batch * rows, width)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true", help="two short videos")
    a = parser.parse_args()
    dtype = torch.bfloat16 if a.device.startswith("cuda") else torch.float32
    model = models.Model(models.read_config(a.model)).to(a.device).eval().load(a.model)
    renderer, text = render.Renderer(torch.device(a.device)), Text()
    layers, result = model.config.layers, {}
    for frames, (size, videos) in (SMOKE_FRAMES if a.smoke else FRAMES).items():
        shape = batches.Shape(frames, (4, 4), size, 512)
        right, asked, looks = [0] * (layers + 1), 0, []
        for i in range(videos // size):
            b = evaluate.on(a.device, batches.make(f"held-out/premise/{i}", shape, text, vary=False, count=24))
            visual = evaluate.see(model, renderer, b["drawn"], shape.grid, dtype).view(size, -1, model.config.hidden)
            is_visual = (b["prefix_ids"] == text.image_pad) | (b["prefix_ids"] == text.video_pad)
            for x in range(layers, -1, -1):
                look = {} if x == layers else None
                states = run(model, visual, b, is_visual, x, look)
                ok = model.logits(states[b["source"]]).argmax(-1) == b["target"]
                whole = torch.ones(len(b["skill"]), dtype=torch.int32, device=a.device).scatter_reduce_(0, b["item_of"], ok.int(), "amin")
                right[x] += int(whole.sum())
                if look:
                    looks.append(look)
            asked += len(b["skill"])
        mean = {key: [sum(each[key][i] for each in looks) / len(looks) for i in range(layers)] for key in looks[0]}
        result[frames] = dict(asked=asked, right_without_from=[r / asked for r in right], **mean)
        print(f"{frames} frames, {asked} questions")
        for x in range(layers + 1):
            line = f"  hidden from layer {x}: {100 * right[x] / asked:5.1f} % right" if x < layers else f"  never hidden: {100 * right[x] / asked:5.1f} % right"
            if x < layers:
                line += f"; attention to visual rows {100 * mean['attention'][x]:5.1f} %, kept by visual rows {mean['visual'][x]:.2f}, by text {mean['text'][x]:.2f}"
            print(line, flush=True)
    pathlib.Path(a.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
