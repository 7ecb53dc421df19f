"""Scores a model on drawn videos of held-out seeds, per skill and length, with the wrong video as control.

    python -m training.tiny.evaluate --model models/kinora-tiny [--device cuda] [--quick]
    python -m training.tiny.evaluate --model OLD NEW      both on the same questions, and which kinds got worse

An answer counts when every greedy token is right; given the right tokens so far that is the same as
generating it. Captions are generated and scored by the F1 of the events they log.
"""
import argparse
import contextlib
import functools
import json
import multiprocessing
import random
import time

import torch

from training.tiny import batches, model as models, prompt
from training.tiny.tokenizer import MODEL, Text
from training.world import captions, questions, render

SEED = "held-out"
# shape, videos
LENGTHS = [(batches.Shape(64, (4, 4), 16, 512), 192), (batches.Shape(256, (4, 4), 8, 512), 128),
           (batches.Shape(1024, (4, 4), 2, 512), 96), (batches.Shape(4096, (4, 4), 1, 512), 40)]
OTHERS = [(batches.Shape(2, (4, 4), 64, 240, image=True), 256), (batches.Shape(2, (8, 8), 32, 240, image=True), 96),
          (batches.Shape(64, (4, 7), 8, 512), 64), (batches.Shape(64, (8, 5), 8, 512), 64), (batches.Shape(64, (8, 8), 4, 512), 48),
          (batches.Shape(256, (6, 6), 4, 512), 32), (batches.Shape(64, (4, 4), 16, 512, passages=260), 128),
          (batches.Shape(256, (4, 4), 8, 512, passages=680), 64), (batches.Shape(1024, (4, 4), 2, 512, passages=2700), 32),
          (batches.Shape(64, (4, 4), 16, 512, passages=260, several=True, label="several"), 96),
          (batches.Shape(256, (4, 4), 8, 512, passages=680, several=True, label="several"), 48),
          (batches.Shape(16, (4, 4), 16, 512, passages=800, text_first=True, label="text800"), 96),
          (batches.Shape(16, (4, 4), 2, 512, passages=8000, text_first=True, label="text8000"), 48)]
SMOKE = [(batches.Shape(16, (4, 4), 2, 160), 2), (batches.Shape(2, (4, 4), 2, 120, image=True), 2)]


def on(device, b):
    return {k: torch.from_numpy(v).to(device, non_blocking=True) if hasattr(v, "dtype") else v for k, v in b.items()}


@torch.no_grad()
def see(model, renderer, rows, grid, dtype, worn=True, chunk=1024):
    """Renderer rows -> visual tokens [pairs, tokens, hidden]"""
    out = []
    for part in rows.split(chunk):
        frames = renderer.draw(part, grid[0] * 28, grid[1] * 28)
        frames = renderer.worn(frames, part) if worn else frames
        out.append(model.look(render.patches(frames).to(dtype), *grid))
    return torch.cat(out)


@functools.cache
def _text():
    return Text()


def _make(job):
    return batches.make(*job, _text(), vary=False, count=30)


@torch.no_grad()
def score_shape(models_, renderer, shape, videos, device, dtype, caption_videos=0, pool=None):
    """For every model {kind: [right, asked, right with the wrong video, asked so]} and caption F1."""
    totals, f1, before = [{} for _ in models_], [[] for _ in models_], [None] * len(models_)
    jobs = [(f"{SEED}/{i}", shape) for i in range(videos // shape.batch)]
    for i, made in enumerate(pool.imap(_make, jobs) if pool else map(_make, jobs)):
        b = on(device, made)
        for m, model in enumerate(models_):
            visual = see(model, renderer, b["drawn"], shape.grid, dtype).view(shape.batch, -1, model.config.hidden)
            right = _right(model, visual, b)
            other = visual.roll(1, 0) if shape.batch > 1 else before[m]
            wrong = None if other is None else _right(model, other, b)
            for j, kind in enumerate(b["kinds"]):
                t = totals[m].setdefault(kind, [0, 0, 0, 0])
                t[0] += int(right[j])
                t[1] += 1
                if wrong is not None:
                    t[2] += int(wrong[j])
                    t[3] += 1
            before[m] = visual
            if not shape.image and i * shape.batch < caption_videos:
                f1[m] += caption_scores(model, visual, b, i, shape, _text(), min(shape.batch, caption_videos - i * shape.batch))
    return totals, f1


def _right(model, visual, b):
    x = model.branches(visual, b)
    ok = model.logits(x[b["source"]]).argmax(-1) == b["target"]
    out = torch.ones(len(b["skill"]), dtype=torch.int32, device=ok.device)
    return out.scatter_reduce_(0, b["item_of"], ok.int(), "amin").tolist()


def caption_scores(model, visual, b, i, shape, text, count):
    """Generates captions for the first `count` videos of a batch."""
    scores = []
    rng = random.Random(f"batch/{SEED}/{i}/{shape.name}")
    for n in range(count):
        s = batches.sample(rng, f"{SEED}/{i}/{shape.name}/{n}", shape, text, vary=False, count=30)
        ids, positions = s.prefix.arrays()
        device = visual.device
        x = model.embed(torch.from_numpy(ids).to(device)).to(visual.dtype)
        x[torch.from_numpy(s.visual_rows).to(device)] = visual[n]
        _, cache = model.prefill(x, torch.from_numpy(positions).to(device))
        asked = ([text.vision_end] if s.open else []) + prompt.question(text, "Describe the video.")
        given = text.decode(model.answer(cache, asked, s.prefix.next, text.end, 300))
        scores.append(captions.score(captions.caption(s.world), given))
    return scores


def by_skill(totals):
    out = {}
    for kind, t in totals.items():
        s = out.setdefault(questions.KIND_SKILL[kind], [0, 0, 0, 0])
        for i in range(4):
            s[i] += t[i]
    return out


def table(results):
    """A line per skill, a column per shape: right % (wrong-video %)."""
    names_ = list(results)
    lines = ["skill".ljust(10) + "".join(n.rjust(16) for n in names_)]
    for skill in questions.CORE + questions.REST:
        cells = []
        for n in names_:
            t = by_skill(results[n]["kinds"]).get(skill)
            cells.append("" if not t else f"{100 * t[0] / t[1]:.1f} ({100 * t[2] / max(1, t[3]):.0f}) {t[1]}")
        lines.append(skill.ljust(10) + "".join(c.rjust(16) for c in cells))
    lines.append("caption F1".ljust(10) + "".join(
        (f"{100 * sum(r['f1']) / len(r['f1']):.1f} of {len(r['f1'])}" if r["f1"] else "").rjust(16) for r in results.values()))
    return "\n".join(lines)


def worst(results, least=0.97):
    out = []
    for name, r in results.items():
        out += [f"{name}/{k} {100 * t[0] / t[1]:.0f}%({t[1]})" for k, t in r["kinds"].items() if t[0] < least * t[1]]
    return out


def run(models_, device, dtype, plan, caption_videos=16, until=None, log=print, pool=None):
    """Results of every model on the same questions; until: time.time() after which no further shape is started."""
    renderer, results = render.Renderer(device), [{} for _ in models_]
    for shape, videos in plan:
        if until and time.time() > until:
            log(f"no time left for {shape.name}")
            continue
        start = time.time()
        kinds, f1 = score_shape(models_, renderer, shape, videos, device, dtype,
                                caption_videos if shape.frames >= 64 and not shape.passages else 0, pool)
        for r, k, f in zip(results, kinds, f1):
            r[shape.name] = dict(kinds=k, f1=f, videos=videos, seconds=time.time() - start)
    return results


def changes(old, new):
    """Kinds whose share of right answers changed by more than chance would (two standard errors), per shape."""
    better, worse = [], []
    for name in old:
        for kind, a in old[name]["kinds"].items():
            b = new[name]["kinds"][kind]
            share = (a[0] + b[0]) / (a[1] + b[1])
            error = (2 * share * (1 - share) / a[1]) ** 0.5
            if abs(b[0] - a[0]) / a[1] > 2 * error and b[0] != a[0]:
                (better if b[0] > a[0] else worse).append(f"{name}/{kind} {100 * a[0] / a[1]:.1f} -> {100 * b[0] / b[1]:.1f} ({a[1]})")
    return better, worse


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", nargs="+", default=[str(MODEL)])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="64 frames only")
    parser.add_argument("--captions", type=int, default=16, help="videos per length whose captions are generated and scored")
    parser.add_argument("--workers", type=int, default=0, help="processes that make the questions")
    parser.add_argument("--seconds", type=float, help="start nothing new after so long")
    parser.add_argument("--out", help="write the results as JSON")
    a = parser.parse_args()
    until = time.time() + a.seconds if a.seconds else None
    with multiprocessing.Pool(a.workers) if a.workers else contextlib.nullcontext() as pool:  # before the device is touched
        loaded = [models.Model(models.read_config(MODEL)).load(m).to(a.device).eval() for m in a.model]
        dtype = torch.bfloat16 if a.device == "cuda" else torch.float32
        torch.manual_seed(0)
        results = run(loaded, a.device, dtype, [(LENGTHS[0][0], 32)] if a.quick else LENGTHS + OTHERS, a.captions, until, pool=pool)
    for name, r in zip(a.model, results):
        print(f"{name}\n{table(r)}\nbelow 97 %:", *worst(r))
    if len(results) == 2:
        better, worse = changes(*results)
        print("better:", *better, sep="\n  ")
        print("worse:", *worse, sep="\n  ")
    if a.out:
        with open(a.out, "w") as f:
            json.dump(results if len(results) > 1 else results[0], f, indent=1)


if __name__ == "__main__":
    main()
