"""Trains the bundled model from nothing, or goes on from saved weights.

    python -m training.tiny.train --out build/tiny --seconds 1260                       one GPU, all of it
    python -m training.tiny.train --out B --seconds 500 --span 0.4 1 --resume A         the rest, from weights alone

The schedule is a function of progress from 0 to 1: `--span` says which part of it this call covers, in
`--seconds` of wall time. Vision is trained first with throw-away heads (seeing.py), then everything together
on a mixture of lengths, sizes and modalities that grows longer (curriculum below).
"""
import argparse
import json
import math
import multiprocessing
import os
import pathlib
import random
import re
import time

import numpy as np
import torch
import torch.nn.functional as F

from training.tiny import batches, evaluate, export, model as models, seeing
from training.tiny.graphs import Steps
from training.tiny.muon import Muon
from training.tiny.tokenizer import Text
from training.world import render

S = batches.Shape
SHAPES = {s.name: s for s in [
    S(2, (4, 4), 192, 168, image=True), S(2, (6, 6), 128, 168, image=True), S(2, (8, 8), 80, 168, image=True), S(2, (5, 8), 112, 168, image=True),
    S(16, (4, 4), 112, 304), S(16, (4, 7), 64, 304), S(16, (8, 5), 48, 304), S(16, (6, 6), 48, 304), S(16, (8, 8), 28, 304),
    S(64, (4, 4), 40, 408), S(64, (4, 7), 24, 408), S(64, (6, 4), 28, 408), S(64, (8, 5), 16, 408), S(64, (6, 6), 18, 408), S(64, (8, 8), 10, 408),
    S(256, (4, 4), 14, 432), S(256, (4, 6), 9, 432), S(256, (6, 6), 6, 432), S(256, (8, 8), 3, 432),
    S(1024, (4, 4), 4, 440), S(1024, (4, 7), 2, 440), S(4096, (4, 4), 1, 440),
    S(16, (4, 4), 48, 408, passages=200), S(64, (4, 4), 36, 408, passages=260), S(256, (4, 4), 12, 432, passages=680),
    S(1024, (4, 4), 3, 440, passages=2700),
    S(16, (4, 4), 48, 408, passages=200, text_first=True, label="text"), S(16, (4, 4), 20, 408, passages=800, text_first=True, label="text800"),
    S(16, (4, 4), 4, 440, passages=4000, text_first=True, label="text4000"), S(16, (4, 4), 2, 440, passages=8000, text_first=True, label="text8000"),
    S(16, (4, 4), 56, 408, passages=200, several=True, text_first=True, label="facts")]}
SMOKE_SHAPES = {s.name: s for s in [S(2, (4, 4), 2, 120, image=True), S(16, (4, 4), 1, 160), S(16, (4, 6), 1, 160, passages=160)]}

# (until this progress, {shape: weight})
CURRICULUM = [
    (0.10, {"image2x4x4": .2, "video16x4x4": .6, "video16x4x7": .1, "video16x6x6": .1}),
    (0.25, {"image2x4x4": .06, "image2x6x6": .03, "image2x8x8": .02, "image2x5x8": .02, "video16x4x4": .2, "video16x4x7": .05, "video16x8x5": .04,
            "video16x6x6": .05, "video16x8x8": .03, "video64x4x4": .3, "video64x4x7": .06, "video64x6x4": .04, "video64x6x6": .03,
            "mixed64x4x4": .07}),
    (0.42, {"image2x4x4": .03, "image2x6x6": .02, "image2x8x8": .02, "image2x5x8": .02, "video16x4x4": .06, "video16x4x7": .03, "video16x8x5": .03,
            "video16x6x6": .03, "video16x8x8": .03, "video64x4x4": .2, "video64x4x7": .05, "video64x6x4": .04, "video64x8x5": .04,
            "video64x6x6": .04, "video64x8x8": .03, "video256x4x4": .22, "video256x4x6": .03, "video256x6x6": .02, "mixed64x4x4": .06,
            "mixed256x4x4": .04}),
    (0.62, {"image2x4x4": .015, "image2x6x6": .01, "image2x8x8": .02, "image2x5x8": .01, "video16x4x4": .02, "video16x4x7": .01, "video16x8x5": .01,
            "video16x6x6": .01, "video16x8x8": .015, "video64x4x4": .10, "video64x4x7": .03, "video64x6x4": .02, "video64x8x5": .02,
            "video64x6x6": .03, "video64x8x8": .04, "video256x4x4": .13, "video256x4x6": .03, "video256x6x6": .03, "video256x8x8": .02,
            "video1024x4x4": .17, "video1024x4x7": .02, "video4096x4x4": .02, "mixed16x4x4": .08, "mixed64x4x4": .08, "mixed256x4x4": .06,
            "mixed1024x4x4": .03}),
    (1.00, {"image2x4x4": .015, "image2x6x6": .01, "image2x8x8": .015, "image2x5x8": .01, "video16x4x4": .02, "video16x4x7": .01, "video16x8x5": .01,
            "video16x6x6": .01, "video16x8x8": .01, "video64x4x4": .09, "video64x4x7": .02, "video64x6x4": .02, "video64x8x5": .02,
            "video64x6x6": .02, "video64x8x8": .03, "video256x4x4": .13, "video256x4x6": .03, "video256x6x6": .03, "video256x8x8": .02,
            "video1024x4x4": .22, "video1024x4x7": .02, "video4096x4x4": .06, "mixed16x4x4": .03, "mixed64x4x4": .05, "mixed256x4x4": .05,
            "mixed1024x4x4": .04}),
]
# for --drill: what is hard (descriptions of pictures, long videos, passages), and enough of the rest that nothing is forgotten
DRILL = [
    (1.00, {"image2x4x4": .09, "image2x6x6": .02, "image2x8x8": .025, "image2x5x8": .02, "video16x4x4": .03, "video16x8x8": .015,
            "video64x4x4": .10, "video64x4x7": .025, "video64x8x5": .015, "video64x8x8": .025, "video256x4x4": .13, "video256x6x6": .025,
            "video1024x4x4": .17, "video4096x4x4": .055, "mixed16x4x4": .03, "mixed64x4x4": .05, "mixed256x4x4": .05, "mixed1024x4x4": .035,
            "mixed16x4x4text800": .02, "mixed16x4x4text8000": .02, "mixed16x4x4facts": .035}),
]
VISION_GRIDS = [((4, 4), 1024, .6), ((4, 7), 576, .1), ((6, 6), 448, .1), ((8, 5), 400, .1), ((8, 8), 256, .1)]


def mixture(progress, drill=False):
    return next(m for until, m in (DRILL if drill else CURRICULUM) if progress < until or until == 1.0)


def fixed(b, shape):
    """Pads what differs from batch to batch, so that every batch of a shape has the same sizes."""
    answers, items = shape.batch * shape.rows * 11 // 20, shape.batch * (shape.rows // 8)
    b.pop("kinds")
    for name, size, filler in (("source", answers, 0), ("target", answers, 0), ("weight", answers, 0), ("item_of", answers, items - 1),
                               ("skill", items, len(batches.SKILLS))):
        padded = np.full(size, filler, b[name].dtype)
        count = min(size, len(b[name]))
        padded[:count] = b[name][:count]
        b[name] = padded
    return b


class Stream(torch.utils.data.IterableDataset):
    """Endless batches; every worker follows the curriculum through the shared progress."""

    def __init__(self, seed, progress, shapes, smoke, drill):
        self.seed, self.progress, self.shapes, self.smoke, self.drill = seed, progress, shapes, smoke, drill

    def __iter__(self):
        torch.set_num_threads(1)
        info = torch.utils.data.get_worker_info()
        worker = info.id if info else 0
        rng, text, count = random.Random(f"{self.seed}/{worker}"), Text(), 0
        while True:
            m = {n: 1 for n in self.shapes} if self.smoke else mixture(self.progress.value, self.drill)
            name = rng.choices(list(m), list(m.values()))[0]
            b = batches.make(f"train/{self.seed}/{worker}/{count}", self.shapes[name], text, drill=self.drill)
            count += 1
            yield name, {k: torch.from_numpy(v) for k, v in fixed(b, self.shapes[name]).items()}


class Trainer:
    def __init__(self, a):
        self.a, self.began = a, time.time()
        self.device = torch.device(a.device)
        self.cuda = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.out = pathlib.Path(a.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.log_file = open(self.out / "log.txt", "a")
        self.progress = multiprocessing.Value("d", a.span[0])
        self.shapes = SMOKE_SHAPES if a.smoke else SHAPES
        stream = Stream(a.seed, self.progress, self.shapes, a.smoke, a.drill)
        self.loader = torch.utils.data.DataLoader(
            stream, batch_size=None, num_workers=a.workers, prefetch_factor=3 if a.workers else None, pin_memory=self.cuda,
            multiprocessing_context="fork" if a.workers else None)
        self.batches = iter(self.loader)  # workers start before the device is touched
        torch.manual_seed(a.seed)
        torch.set_float32_matmul_precision("high")
        compiled = self.cuda and not a.eager
        self.model = models.Model(compiled=compiled).to(self.device)
        if a.resume:
            self.model.load(a.resume)
            self.log("resumed from", a.resume)
        self.heads = seeing.Heads(self.model.config.hidden).to(self.device)
        self.renderer, self.drawn = render.Renderer(self.device), 0
        self.log(f"{sum(p.numel() for p in self.model.parameters()) / 1e6:.2f}M parameters, vision "
                 f"{sum(p.numel() for p in self.model.visual.parameters()) / 1e6:.2f}M")

    def log(self, *words):
        line = f"[{time.time() - self.began:6.1f}] " + " ".join(str(w) for w in words)
        print(line, flush=True)
        print(line, file=self.log_file, flush=True)

    def prepare(self, everything):
        """Optimizers for vision and heads, or for everything; learning rates are tensors that captured steps read."""
        self.rate = torch.zeros((), device=self.device)
        self.sums = torch.zeros(3, device=self.device)  # loss, gradient norm, steps
        vision = list(self.model.visual.parameters())
        text = list(self.model.model.parameters()) if everything else []
        table = self.model.model.embed_tokens.weight
        plain, matrices = [], []
        for parameters, scale, decay in ((vision, self.a.vision_rate if everything else 1, .05), (text, 1, .05),
                                         (list(self.heads.parameters()), 1, 0)):
            large = [p for p in parameters if p.dim() == 2 and p is not table and decay] if self.a.muon else []
            chosen = {id(p) for p in large}
            matrices.append(dict(params=large, weight_decay=decay, scale=scale))
            rest = [p for p in parameters if id(p) not in chosen]
            plain.append(dict(params=[p for p in rest if p.dim() > 1], weight_decay=decay, scale=scale))
            plain.append(dict(params=[p for p in rest if p.dim() <= 1], weight_decay=0.0, scale=scale))
        plain = [g for g in plain if g["params"]]
        for g in plain:
            g["lr"] = torch.zeros((), device=self.device) if self.cuda else 0.0
        self.trained = [p for g in plain + matrices for p in g["params"]]
        for p in self.trained:
            p.grad = torch.zeros_like(p)
        self.muon = Muon(matrices) if self.a.muon else None
        self.adam = torch.optim.AdamW(plain, betas=(0.9, 0.98), fused=self.cuda, capturable=self.cuda)

    def set_rate(self, rate):
        self.rate.fill_(rate)
        for g in self.adam.param_groups:
            if self.cuda:
                g["lr"].fill_(rate * g["scale"])
            else:
                g["lr"] = rate * g["scale"]

    def update(self, loss, shown):
        """One optimizer step on `loss`; `shown` goes to the log. Captured, so nothing here waits for the device."""
        torch._foreach_zero_([p.grad for p in self.trained])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.adam.step()
        if self.muon:
            self.muon.step(self.rate)
        self.sums += torch.stack([shown.detach(), norm.detach(), torch.ones_like(norm)])

    @torch.no_grad()
    def draw(self, rows, grid, videos):
        """Patches of `videos` videos; in two of five steps a third of them is worn by a scaler and a codec."""
        self.drawn += 1
        third = videos // 3 if videos > 2 else videos * (random.random() < 0.33)
        third *= random.random() < 0.4
        return self.renderer.model_patches(rows, grid[0] * 28, grid[1] * 28, third * (len(rows) // videos),
                                           2 * self.drawn + 3).to(self.dtype)

    # -- vision alone
    def vision_step(self, grid, b):
        tokens = self.model.look(b["patches"], *grid, fast=True)
        loss = self.heads(tokens, *seeing.labels(b["rows"], grid), self.seen)
        self.update(loss, loss)

    def train_vision(self, seconds):
        self.prepare(False)
        self.seen = torch.zeros(5, 2, device=self.device)
        steps = Steps(self.vision_step, self.device, self.log, not self.a.eager)
        began = last = time.time()
        count, rng = 0, random.Random(self.a.seed)
        while time.time() - began < seconds:
            p = (time.time() - began) / seconds
            grid, n, _ = rng.choices(VISION_GRIDS, [g[2] for g in VISION_GRIDS])[0]
            rows = seeing.random_pairs(4 if self.a.smoke else n, grid, self.device)
            self.set_rate(self.a.vision_peak * min(1, (count + 1) / 150) * (0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * p))))
            steps.run(grid, dict(rows=rows, patches=self.draw(rows, grid, len(rows) // 2)))
            count += 1
            if time.time() - last > self.a.every:
                last = time.time()
                self.log(f"vision step {count} loss {self.sums[0] / self.sums[2]:.3f} {self.sight()}")
            if self.a.smoke and count >= 2:
                break
        self.log(f"vision done: {count} steps, {self.sight()}")

    def sight(self):
        words = " ".join(f"{n}:{100 * a / max(1, c):.1f}" for n, (a, c) in
                         zip(("what", "colour", "motion", "background", "count"), self.seen.tolist()))
        self.seen.zero_()
        self.sums.zero_()
        return words

    # -- everything
    def answer_step(self, name, b):
        shape = self.shapes[name]
        visual = self.model.look(b["patches"], *shape.grid, fast=True)
        x = self.model.branches(visual.view(shape.batch, -1, visual.shape[-1]), b, fast=True)
        logits = self.model.logits(x.index_select(0, b["source"]))
        each = F.cross_entropy(logits, b["target"], reduction="none")
        loss = (each * b["weight"]).sum() / b["weight"].sum()
        with torch.no_grad():
            ok = (logits.argmax(-1) == b["target"]).float()
            right = torch.ones(len(b["skill"]), device=self.device).scatter_reduce_(0, b["item_of"], ok, "amin")
            self.stats[name].index_add_(0, b["skill"], torch.stack([right, torch.ones_like(right)], 1))
        total = loss
        if shape.frames <= 16:
            total = loss + self.heads_weight * self.heads(visual, *seeing.labels(b["drawn"], shape.grid))
        self.update(total, loss)

    def train(self, seconds):
        a, (first, last_progress) = self.a, self.a.span
        self.prepare(True)
        self.stats = {n: torch.zeros(len(batches.SKILLS) + 1, 2, device=self.device) for n in self.shapes}
        self.heads_weight = torch.zeros((), device=self.device)
        steps = Steps(self.answer_step, self.device, self.log, not a.eager)
        began = last = saved = time.time()
        seen, count, done, waited = {}, 0, 0, 0.0
        while time.time() - began < seconds:
            p = first + (last_progress - first) * (time.time() - began) / seconds
            self.progress.value = p
            t = time.time()
            name, b = next(self.batches)
            waited += time.time() - t
            rate = (a.low + (a.peak - a.low) * 0.5 * (1 + math.cos(math.pi * p))) * min(1, (count + 1) / 150)
            self.set_rate(rate)
            self.heads_weight.fill_(0.3 * max(0.0, 1 - p / 0.45) if first == 0 else 0.0)
            b = {k: v.to(self.device, non_blocking=True) for k, v in b.items()}
            b["patches"] = self.draw(b["drawn"], self.shapes[name].grid, self.shapes[name].batch)
            steps.run(name, b)
            seen[name] = seen.get(name, 0) + 1
            count += 1
            if time.time() - last > a.every:
                k = max(1, count - done)
                s = self.sums.tolist()
                self.log(f"step {count} p={p:.3f} rate {rate:.1e} loss {s[0] / s[2]:.4f} norm {s[1] / s[2]:.2f} "
                         f"{1e3 * (time.time() - last) / k:.0f} ms/step, waited {1e3 * waited / k:.1f}")
                self.report()
                last, waited, done = time.time(), 0.0, count
            if self.cuda and time.time() - saved > 150:
                saved = time.time()
                self.save()
            if a.smoke and count >= 3:
                break
        tokens = sum(self.shapes[n].visual_tokens * self.shapes[n].batch * c for n, c in seen.items())
        self.log(f"trained {count} steps in {time.time() - began:.0f} s, {tokens / 1e6:.0f}M visual tokens, steps {seen}"
                 + (f", peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if self.cuda else ""))

    def report(self):
        """Right answers in %, per length and skill, since the last report."""
        merged = {}
        for name, table in self.stats.items():
            key = re.match(r"[a-z]+\d+", name).group()
            merged[key] = merged.get(key, 0) + table
        for key, table in merged.items():
            rows = [(n, r, c) for n, (r, c) in zip(batches.SKILLS, table.tolist()) if c]
            if rows:
                self.log(f"   {key}: " + " ".join(f"{n}:{100 * r / c:.0f}" for n, r, c in rows))
        for table in self.stats.values():
            table.zero_()
        self.sums.zero_()

    def save(self):
        """bf16 shards small enough to travel."""
        export.save(self.model, self.out / "model", 15_000_000)
        for extra in (self.out / "model").iterdir():
            if extra.suffix != ".safetensors":
                extra.unlink()
        self.log("saved", *(f"{f.name} {f.stat().st_size}" for f in sorted((self.out / "model").iterdir())))


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=1260, help="of training with answers")
    parser.add_argument("--vision-seconds", type=float, default=90, help="of vision alone, when the span starts at 0")
    parser.add_argument("--span", type=float, nargs=2, default=[0.0, 1.0])
    parser.add_argument("--resume", help="a directory with *.safetensors")
    parser.add_argument("--drill", action="store_true", help="more of what the model finds hard; for going on from trained weights")
    parser.add_argument("--peak", type=float, default=1.2e-3)
    parser.add_argument("--low", type=float, default=2e-5)
    parser.add_argument("--vision-peak", type=float, default=1.5e-3)
    parser.add_argument("--vision-rate", type=float, default=0.5, help="learning rate of vision, relative")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--every", type=float, default=20, help="seconds between lines of the log")
    parser.add_argument("--evaluate-seconds", type=float, default=60, help="no evaluation is started later than this after training; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--muon", type=int, default=1, help="1: matrices by Muon, 0: everything by AdamW")
    parser.add_argument("--eager", action="store_true", help="no torch.compile, no CUDA graphs")
    parser.add_argument("--captions", type=int, default=0, help="videos per length whose captions are generated and scored")
    parser.add_argument("--smoke", action="store_true", help="the whole road in seconds, on the CPU")
    a = parser.parse_args(words)
    if a.smoke:
        a.device, a.workers = "cpu", 0
    return a


def main():
    a = arguments()
    t = Trainer(a)
    if a.span[0] == 0 and a.vision_seconds > 0:
        t.train_vision(a.vision_seconds)
        if t.cuda:
            t.save()
    t.train(a.seconds)
    t.save()
    with torch.no_grad():  # what is evaluated is what was saved
        for p in t.model.parameters():
            p.copy_(p.to(torch.bfloat16).float())
    plan = evaluate.SMOKE if a.smoke else evaluate.LENGTHS + evaluate.OTHERS
    if a.evaluate_seconds <= 0:
        os._exit(0)
    with torch.no_grad():
        results = evaluate.run([t.model.eval()], t.device, t.dtype, plan, a.captions,
                               time.time() + a.evaluate_seconds, t.log)[0]
    (t.out / "results.json").write_text(json.dumps(results))
    t.log("below 97 %:", *evaluate.worst(results))
    t.log("\n" + evaluate.table(results))
    os._exit(0)  # workers of an endless stream


if __name__ == "__main__":
    main()
