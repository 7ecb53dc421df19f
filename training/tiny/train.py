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
import time

import torch
import torch.nn.functional as F

from training.tiny import batches, evaluate, export, model as models, seeing
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
    S(64, (4, 4), 36, 408, passages=170), S(256, (4, 4), 12, 432, passages=680), S(1024, (4, 4), 3, 440, passages=2700)]}
SMOKE_SHAPES = {s.name: s for s in [S(2, (4, 4), 4, 120, image=True), S(16, (4, 4), 4, 200), S(16, (4, 6), 2, 200, passages=100)]}

# (until this progress, {shape: weight})
CURRICULUM = [
    (0.10, {"image2x4x4": .2, "video16x4x4": .6, "video16x4x7": .1, "video16x6x6": .1}),
    (0.25, {"image2x4x4": .06, "image2x6x6": .03, "image2x8x8": .02, "image2x5x8": .02, "video16x4x4": .2, "video16x4x7": .05, "video16x8x5": .04,
            "video16x6x6": .05, "video16x8x8": .03, "video64x4x4": .3, "video64x4x7": .06, "video64x6x4": .04, "video64x6x6": .03,
            "mixed64x4x4": .07}),
    (0.45, {"image2x4x4": .03, "image2x6x6": .02, "image2x8x8": .02, "image2x5x8": .02, "video16x4x4": .06, "video16x4x7": .03, "video16x8x5": .03,
            "video16x6x6": .03, "video16x8x8": .03, "video64x4x4": .2, "video64x4x7": .05, "video64x6x4": .04, "video64x8x5": .04,
            "video64x6x6": .04, "video64x8x8": .03, "video256x4x4": .22, "video256x4x6": .03, "video256x6x6": .02, "mixed64x4x4": .06,
            "mixed256x4x4": .04}),
    (1.00, {"image2x4x4": .02, "image2x6x6": .015, "image2x8x8": .015, "image2x5x8": .015, "video16x4x4": .04, "video16x4x7": .02, "video16x8x5": .02,
            "video16x6x6": .02, "video16x8x8": .02, "video64x4x4": .12, "video64x4x7": .04, "video64x6x4": .03, "video64x8x5": .03,
            "video64x6x6": .03, "video64x8x8": .03, "video256x4x4": .12, "video256x4x6": .03, "video256x6x6": .03, "video256x8x8": .02,
            "video1024x4x4": .2, "video1024x4x7": .02, "video4096x4x4": .03, "mixed64x4x4": .04, "mixed256x4x4": .04, "mixed1024x4x4": .03}),
]
VISION_GRIDS = [((4, 4), 1024, .6), ((4, 7), 576, .1), ((6, 6), 448, .1), ((8, 5), 400, .1), ((8, 8), 256, .1)]


def mixture(progress):
    return next(m for until, m in CURRICULUM if progress < until or until == 1.0)


class Stream(torch.utils.data.IterableDataset):
    """Endless batches; every worker follows the curriculum through the shared progress."""

    def __init__(self, seed, progress, shapes, smoke):
        self.seed, self.progress, self.shapes, self.smoke = seed, progress, shapes, smoke

    def __iter__(self):
        torch.set_num_threads(1)
        info = torch.utils.data.get_worker_info()
        worker = info.id if info else 0
        rng, text, count = random.Random(f"{self.seed}/{worker}"), Text(), 0
        while True:
            m = {n: 1 for n in self.shapes} if self.smoke else mixture(self.progress.value)
            name = rng.choices(list(m), list(m.values()))[0]
            b = batches.make(f"train/{self.seed}/{worker}/{count}", self.shapes[name], text)
            b.pop("kinds")
            count += 1
            yield name, {k: torch.from_numpy(v) for k, v in b.items()}


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
        stream = Stream(a.seed, self.progress, self.shapes, a.smoke)
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

    def optimizer(self, everything):
        vision = list(self.model.visual.parameters())
        text = list(self.model.model.parameters()) if everything else []
        heads = list(self.heads.parameters())
        plain, matrices = [], []
        table = self.model.model.embed_tokens.weight
        for parameters, scale, decay in ((vision, self.a.vision_rate if everything else 1, .05), (text, 1, .05), (heads, 1, 0)):
            large = [p for p in parameters if p.dim() == 2 and p is not table and decay] if self.a.muon else []
            chosen = {id(p) for p in large}
            matrices.append(dict(params=large, weight_decay=decay, scale=scale))
            rest = [p for p in parameters if id(p) not in chosen]
            plain.append(dict(params=[p for p in rest if p.dim() > 1], weight_decay=decay, scale=scale))
            plain.append(dict(params=[p for p in rest if p.dim() <= 1], weight_decay=0.0, scale=scale))
        plain = [g for g in plain if g["params"]]
        self.trained = [p for g in plain + matrices for p in g["params"]]
        self.muon = Muon(matrices) if self.a.muon else None
        return torch.optim.AdamW(plain, lr=1e-3, betas=(0.9, 0.98), fused=self.cuda)

    def update(self, optimizer, loss, rate):
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        for g in optimizer.param_groups:
            g["lr"] = rate * g["scale"]
        optimizer.step()
        if self.muon:
            self.muon.step(rate)
        return norm.detach()

    @torch.no_grad()
    def draw(self, rows, grid, videos):
        """Patches of `videos` videos, about a third of them worn by a scaler and a codec."""
        self.drawn += 1
        third = videos // 3 if videos > 2 else videos * (random.random() < 0.33)
        return self.renderer.model_patches(rows, grid[0] * 28, grid[1] * 28, third * (len(rows) // videos),
                                           2 * self.drawn + 3).to(self.dtype)

    # -- vision alone
    def train_vision(self, seconds):
        optimizer, score = self.optimizer(False), torch.zeros(5, 2, device=self.device)
        began = last = time.time()
        steps, rng = 0, random.Random(self.a.seed)
        while time.time() - began < seconds:
            p = (time.time() - began) / seconds
            grid, n, _ = rng.choices(VISION_GRIDS, [g[2] for g in VISION_GRIDS])[0]
            rows = seeing.random_pairs(8 if self.a.smoke else n, grid, self.device)
            tokens = self.model.look(self.draw(rows, grid, len(rows) // 2), *grid, fast=True)
            loss = self.heads(tokens, *seeing.labels(rows, grid), score)
            rate = self.a.vision_peak * min(1, (steps + 1) / 150) * (0.25 + 0.75 * 0.5 * (1 + math.cos(math.pi * p)))
            self.update(optimizer, loss, rate)
            steps += 1
            if self.cuda and steps % 8 == 0:
                torch.cuda.synchronize()
            if time.time() - last > self.a.every:
                last = time.time()
                self.log(f"vision step {steps} loss {loss.item():.3f} {self.seen(score)}")
                score.zero_()
            if self.a.smoke and steps >= 2:
                break
        self.log(f"vision done: {steps} steps, {self.seen(score)}")

    @staticmethod
    def seen(score):
        return " ".join(f"{n}:{100 * a / max(1, c):.1f}" for n, (a, c) in
                        zip(("what", "colour", "motion", "background", "count"), score.tolist()))

    # -- everything
    def loss(self, name, b, heads_weight, stats):
        shape = self.shapes[name]
        visual = self.model.look(self.draw(b["drawn"], shape.grid, shape.batch), *shape.grid, fast=True)
        x = self.model.branches(visual.view(shape.batch, -1, visual.shape[-1]), b, fast=True)
        logits = self.model.logits(x.index_select(0, b["source"]))
        each = F.cross_entropy(logits, b["target"], reduction="none")
        loss = (each * b["weight"]).sum() / b["weight"].sum()
        with torch.no_grad():
            ok = (logits.argmax(-1) == b["target"]).float()
            right = torch.ones(len(b["skill"]), device=self.device).scatter_reduce_(0, b["item_of"], ok, "amin")
            key = name.split("x")[0]
            if key not in stats:
                stats[key] = torch.zeros(len(batches.SKILLS), 2, device=self.device)
            stats[key].index_add_(0, b["skill"], torch.stack([right, torch.ones_like(right)], 1))
        if heads_weight > 0 and shape.frames <= 256:
            some = slice(0, 512)
            rows = b["drawn"].view(-1, 2 * b["drawn"].shape[1])[some].reshape(-1, b["drawn"].shape[1])
            total = loss + heads_weight * self.heads(visual[some], *seeing.labels(rows, shape.grid))
            return total, loss.detach()
        return loss, loss.detach()

    def train(self, seconds):
        a, (first, last_progress) = self.a, self.a.span
        optimizer, stats = self.optimizer(True), {}
        began = last = time.time()
        sums, seen, times, steps, waited, done = torch.zeros(2, device=self.device), {}, {}, 0, 0.0, 0
        while time.time() - began < seconds:
            p = first + (last_progress - first) * (time.time() - began) / seconds
            self.progress.value = p
            t = time.time()
            name, b = next(self.batches)
            waited += time.time() - t
            b = {k: v.to(self.device, non_blocking=True) for k, v in b.items()}
            rate = (a.low + (a.peak - a.low) * 0.5 * (1 + math.cos(math.pi * p))) * min(1, (steps + 1) / 150)
            loss, answer_loss = self.loss(name, b, 0.3 * max(0.0, 1 - p / 0.4), stats)
            norm = self.update(optimizer, loss, rate)
            sums += torch.stack([answer_loss, norm])
            seen[name] = seen.get(name, 0) + 1
            steps += 1
            if self.cuda and steps % 4 == 0:
                torch.cuda.synchronize()
            if a.time_shapes:
                torch.cuda.synchronize()
                times.setdefault(name, []).append(time.time() - t)
            if time.time() - last > a.every:
                last = time.time()
                k = max(1, steps - done)
                s = sums.tolist()
                self.log(f"step {steps} p={p:.3f} rate {rate:.1e} loss {s[0] / k:.4f} norm {s[1] / k:.2f} "
                         f"{1e3 * a.every / k:.0f} ms/step, waited {1e3 * waited / k:.1f}")
                for key in sorted(stats):
                    self.log(f"   {key}: " + " ".join(f"{n}:{100 * r / c:.0f}" for n, (r, c) in zip(batches.SKILLS, stats[key].tolist()) if c))
                sums.zero_()
                stats.clear()
                waited, done = 0.0, steps
            if a.smoke and steps >= 4:
                break
        tokens = sum(self.shapes[n].visual_tokens * self.shapes[n].batch * c for n, c in seen.items())
        self.log(f"trained {steps} steps in {time.time() - began:.0f} s, {tokens / 1e6:.0f}M visual tokens"
                 + (f", peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if self.cuda else ""))
        for n, t in sorted(times.items()):
            self.log(f"   {n}: {1e3 * sorted(t)[len(t) // 2]:.0f} ms, worst {1e3 * max(t):.0f}, {len(t)} steps")

    def save(self):
        """bf16 shards small enough to travel; the model that is evaluated is what was saved."""
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(p.to(torch.bfloat16).float())
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
    parser.add_argument("--peak", type=float, default=1e-3)
    parser.add_argument("--low", type=float, default=2e-5)
    parser.add_argument("--vision-peak", type=float, default=1.5e-3)
    parser.add_argument("--vision-rate", type=float, default=0.5, help="learning rate of vision, relative")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--every", type=float, default=20, help="seconds between lines of the log")
    parser.add_argument("--evaluate-seconds", type=float, default=60, help="no evaluation is started later than this after training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--muon", type=int, default=1, help="1: matrices by Muon, 0: everything by AdamW")
    parser.add_argument("--eager", action="store_true", help="no torch.compile")
    parser.add_argument("--time-shapes", action="store_true")
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
    plan = evaluate.SMOKE if a.smoke else evaluate.LENGTHS + evaluate.OTHERS
    with torch.no_grad():
        results = evaluate.run(t.model.eval(), t.device, t.dtype, plan, Text(), 0 if a.smoke else 16,
                               time.time() + a.evaluate_seconds, t.log)
    (t.out / "results.json").write_text(json.dumps(results))
    t.log("below 97 %:", *evaluate.worst(results))
    t.log("\n" + evaluate.table(results))
    os._exit(0)  # workers of an endless stream


if __name__ == "__main__":
    main()
