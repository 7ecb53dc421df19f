"""Trains a draft for the bundled model and writes what kinora loads.

    python -m training.draft.train --out build/draft --seconds 400                 one GPU; the draft is build/draft/draft
    python -m training.draft.train --out build/draft --seconds 400 --resume        goes on with an interrupted call
    python -m training.draft.train --out build/draft --smoke                       the whole road in seconds, on a CPU

Two stages: text alone, then questions about pictures and videos, whose rows the draft may read in a part of the steps (as states of the
target's middle layer) and must do without in the others, as it will in kinora. Every step predicts several tokens ahead (steps.py).
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import random
import time

import torch

from training.draft import model as drafts, steps, tiny
from training.draft.learner import Learner
from training.tiny.tokenizer import MODEL


class Trainer:
    def __init__(self, a):
        self.a, self.began = a, time.time()
        self.device = torch.device(a.device)
        self.cuda = self.device.type == "cuda"
        self.out = pathlib.Path(a.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.log_file = open(self.out / "log.txt", "a")
        self.stages = tiny.SMOKE if a.smoke else tiny.STAGES
        self.stage = multiprocessing.Value("i", 0)
        self.batches = tiny.batches_of(a.seed, self.stages, self.stage, a.workers, self.cuda)
        torch.manual_seed(a.seed)
        torch.set_float32_matmul_precision("high")
        self.target = tiny.Tiny(a.target, a.device, torch.bfloat16 if self.cuda else torch.float32)
        draft = self.target.draft(a.target, a.start)
        if a.vocabulary:
            draft = drafts.with_own_head(draft, self.target.head, tiny.frequent_tokens(a.vocabulary, self.target.text, self.stages))
        self.learner = Learner(draft, a.peak, a.low)
        self.draft, self.head = self.learner.draft, self.target.head
        self.elapsed, self.rng = 0.0, random.Random(a.seed)
        if a.resume and self.state_file.exists():
            self.restore()
        self.log(f"{sum(p.numel() for p in self.draft.parameters()) / 1e6:.2f}M parameters, {self.device}")

    @property
    def state_file(self):
        return self.out / "state.pt"

    def log(self, *words):
        line = f"[{time.time() - self.began:6.1f}] " + " ".join(str(w) for w in words)
        print(line, flush=True)
        print(line, file=self.log_file, flush=True)

    def save(self):
        drafts.save(self.draft, self.out / "draft")
        state = dict(self.learner.state(), elapsed=self.elapsed)
        torch.save(state, self.state_file.with_suffix(".new"))
        os.replace(self.state_file.with_suffix(".new"), self.state_file)

    def restore(self):
        state = torch.load(self.state_file, map_location=self.device)
        self.learner.restore(state)
        self.elapsed = state["elapsed"]
        self.log(f"resumed after {self.step} steps, {self.elapsed:.0f} s")

    @property
    def step(self):
        return self.learner.step

    def train(self):
        a = self.a
        hit = torch.zeros(a.ahead, 2, device=self.device)
        losses, told, saved, waited, since = [], time.time(), time.time(), 0.0, self.step
        last = time.time()
        while self.elapsed < a.seconds and not (a.smoke and self.step - since >= 6):
            progress = self.elapsed / a.seconds if not a.smoke else (self.step - since) / 6
            self.stage.value = int(progress >= a.text_share)
            t = time.time()
            stage, shape, b = next(self.batches)
            waited += time.time() - t
            rows = self.target.rows(shape, b, stage, "raw" if a.visual == "raw" else "middle")
            if rows.wanted.any():
                see = a.visual != "none" and stage == "visual" and self.rng.random() < a.seen_share
                loss, found = steps.loss_of(self.draft, rows, self.head, a.ahead, see)
                self.learner.update(loss, progress)
                if not see:
                    hit += found
                losses.append(loss.detach())
            self.elapsed += time.time() - last
            last = time.time()
            if time.time() - told > a.every or (a.smoke and losses):
                self.log(f"{stage} step {self.step} loss {torch.stack(losses).mean():.3f} chain {steps.chain_length(hit):.2f} "
                         f"({' '.join(f'{100 * r / max(1, n):.0f}' for r, n in hit.tolist())} %) "
                         f"{(self.step - since) / max(1e-9, time.time() - self.began):.1f} steps/s, waited {waited:.0f} s")
                hit.zero_()
                losses, told = [], time.time()
            if time.time() - saved > 60:
                self.save()
                saved = time.time()
        self.save()

    @torch.no_grad()
    def evaluate(self, batches_):
        """Held-out questions, no visual row read: chains as long as the training looked ahead, with the exported weights."""
        draft = drafts.load(self.out / "draft").to(self.device)
        hit = torch.zeros(self.a.ahead, 2, device=self.device)
        shape = tiny.HELD_OUT if not self.a.smoke else next(iter(tiny.SMOKE["visual"]))
        for i in range(batches_):
            b = {k: torch.from_numpy(v) for k, v in tiny.make(f"held-out/{i}", shape, self.target.text).items()}
            rows = self.target.rows(shape, b)
            hit += steps.hits(draft, rows, steps.run(draft, rows, self.head, self.a.ahead, see=False))
        self.log(f"held out: accepted length of chains {steps.chain_length(hit):.3f}, the target's own token counted; right after right ones "
                 f"{' '.join(f'{100 * r / max(1, n):.1f}' for r, n in hit.tolist())} %")
        (self.out / "result.json").write_text(json.dumps(dict(arguments=vars(self.a), steps=self.step, chain=steps.chain_length(hit),
                                                              hits=hit.tolist()), default=str, indent=1) + "\n")


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--target", default=str(MODEL), help="the model's directory")
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--text-share", type=float, default=0.15, help="of the time for the text stage")
    parser.add_argument("--ahead", type=int, default=5, help="tokens predicted ahead; 1: no multi-token prediction")
    parser.add_argument("--visual", choices=("middle", "raw", "none"), default="middle",
                        help="what stands for visual rows: states of the middle layer, raw embeddings, nothing")
    parser.add_argument("--seen-share", type=float, default=0.5, help="of the visual stage's steps in which the draft reads visual rows")
    parser.add_argument("--start", help="a saved draft to go on with, instead of the target's last layer")
    parser.add_argument("--vocabulary", type=int, default=0, help="a head of the draft's own over its most frequent tokens; 0: the target's head")
    parser.add_argument("--peak", type=float, default=2e-3)
    parser.add_argument("--low", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--every", type=float, default=10, help="seconds between lines of the log")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="the whole road in seconds, on a CPU")
    a = parser.parse_args(words)
    if a.smoke:
        a.device, a.workers, a.ahead = "cpu", 0, min(a.ahead, 3)
    return a


def main():
    t = Trainer(arguments())
    t.train()
    t.evaluate(2 if t.a.smoke else 8)
    os._exit(0)  # workers of an endless stream


if __name__ == "__main__":
    main()
