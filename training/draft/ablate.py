"""Trains drafts that differ in one thing each on the same batches, and measures them on held-out captions of several lengths.

    python -m training.draft.ablate --out build/ablation --seconds 450     one GPU
    python -m training.draft.ablate --out build/ablation --smoke           the whole road on a CPU, in a minute

The drafts are the rows of Sparrow's table 6 and what kinora ships: with and without multi-token prediction, visual rows as states of the
target's middle layer, as raw embeddings (MSD's way), as a few learned rows (ViSpec's way) or not at all, and with a head over fewer tokens. Each is measured as it was trained, reading visual rows where it read some, and
text-anchored, reading none, which is what kinora does. `--also NAME=DIRECTORY` measures a saved draft too; with --arms alone nothing is
trained, and with --times 8 eight times as many captions are asked for:

    python -m training.draft.ablate --out build/ablation --arms --times 8 --also kinora=models/kinora-tiny/draft

With --longest 64 no video in training has more frames than that, as where drafts learn from clips and are used on long recordings.
"""
import argparse
import dataclasses
import json
import multiprocessing
import os
import pathlib
import random
import time

import torch

from training.draft import ablation_table, model as drafts, steps, tiny, trees, vispec
from training.draft.learner import Learner
from training.tiny import batches
from training.tiny.tokenizer import MODEL, Text


@dataclasses.dataclass(frozen=True)
class Arm:
    visual: str        # what stands for visual rows: middle, raw, few (vispec.py), none
    seen_share: float  # of the visual stage's steps in which they are read
    ahead: int         # tokens predicted ahead
    vocabulary: float = 0  # part of the target's that a head of the draft's own has; 0: the target's head


ARMS = {
    "MSD": Arm("raw", 1.0, 1),                       # neither
    "multi-token": Arm("raw", 1.0, 5),               # multi-token prediction alone
    "bridging": Arm("middle", 1.0, 1),               # visual states of the middle layer alone
    "Sparrow": Arm("middle", 1.0, 5),                # both, as published
    "Sparrow, half unseen": Arm("middle", 0.5, 5),   # as kinora's is trained
    "text only": Arm("none", 0.0, 5),
    "ViSpec": Arm("few", 1.0, 5),                    # a few learned rows instead of all visual ones
    "Sparrow, own head": Arm("middle", 0.5, 5, 32768 / 152064),  # kinora's, the head reduced as EAGLE-3's for a vocabulary of 152,064
}
FRAMES = {64: (8, 32), 128: (8, 48), 1024: (2, 40), 4096: (1, 32)}  # frames: (videos of a batch, videos)
SMOKE_FRAMES = {16: (1, 2)}
QUERIES = 16  # of ViSpec's kind


def captions(frames, size, index, text):
    """Held-out videos whose only question is what happens in them."""
    shape = batches.Shape(frames, (4, 4), size, 512)
    rng = random.Random(f"captions/{frames}/{index}")
    made = [batches.sample(rng, f"held-out/captions/{frames}/{index}/{i}", shape, text, vary=False, skills=["caption"], count=0)
            for i in range(size)]
    return shape, tiny.collated(made, shape, text)


def as_read(draft, rows, visual):
    """A batch with what stands for its visual rows."""
    if visual == "few":
        return draft.see(rows)
    return dataclasses.replace(rows, bridge=rows.embeddings) if visual == "raw" else rows


def stages_of(a):
    return tiny.no_longer_than(tiny.SMOKE if a.smoke else tiny.STAGES, a.longest)


class Ablation:
    def __init__(self, a):
        self.a, self.began = a, time.time()
        self.cuda = a.device.startswith("cuda")
        self.stages = stages_of(a)
        self.stage = multiprocessing.Value("i", 0)
        self.batches = tiny.batches_of(a.seed, self.stages, self.stage, a.workers, self.cuda)
        torch.manual_seed(a.seed)
        torch.set_float32_matmul_precision("high")
        self.target = tiny.Tiny(a.target, a.device, torch.bfloat16 if self.cuda else torch.float32)
        first = self.target.draft(a.target, a.start)
        self.learners = {}
        for name in a.arms:
            if ARMS[name].vocabulary:
                count = round(ARMS[name].vocabulary * first.config.vocabulary)
                draft = drafts.with_own_head(first, self.target.head, tiny.frequent_tokens(count, self.target.text, self.stages))
            elif ARMS[name].visual == "few":
                draft = vispec.like(first, QUERIES)
            else:
                draft = drafts.Draft(first.config).to(a.device)
                draft.load_state_dict(first.state_dict())
                draft.sizes = first.sizes
            self.learners[name] = Learner(draft, a.peak, a.low)

    def folder(self, name):
        return pathlib.Path(self.a.out) / name.replace(",", "").replace(" ", "-")

    def log(self, *words):
        print(f"[{time.time() - self.began:6.1f}]", *words, flush=True)

    def train(self):
        a = self.a
        began = told = time.time()
        losses = {name: [] for name in self.learners}
        steps_done, chance = 0, random.Random(a.seed)
        while True:
            progress = steps_done / 4 if a.smoke else (time.time() - began) / a.seconds
            if progress >= 1 or not self.learners:
                break
            self.stage.value = int(progress >= a.text_share)
            stage, shape, b = next(self.batches)
            rows = self.target.rows(shape, b, stage)
            if not rows.wanted.any():
                continue
            draw = chance.random()
            for name, learner in self.learners.items():
                arm = ARMS[name]
                see = stage == "visual" and draw < arm.seen_share
                own = as_read(learner.draft, rows, arm.visual) if see else rows
                loss, _ = steps.loss_of(learner.draft, own, self.target.head, arm.ahead, see)
                learner.update(loss, progress)
                losses[name].append(loss.detach())
            steps_done += 1
            if time.time() - told > a.every:
                self.log(stage, "step", steps_done, *(f"{name} {torch.stack(values).mean():.3f};" for name, values in losses.items()))
                losses, told = {name: [] for name in self.learners}, time.time()
        self.log(f"{steps_done} steps")
        for name, learner in self.learners.items():
            (vispec if ARMS[name].visual == "few" else drafts).save(learner.draft, self.folder(name))
        return steps_done

    @torch.no_grad()
    def measure(self):
        """{draft: {how: {frames: (tokens, passes)}}}, over the captions that the target itself says word for word."""
        a, text = self.a, Text()
        shape_of_tree = trees.Shape.of(a.tree)
        # What kinora would load: weights rounded as they are saved.
        ready = {name: (vispec if ARMS[name].visual == "few" else drafts).load(self.folder(name)).to(a.device) for name in self.learners}
        visual = {name: ARMS[name].visual for name in self.learners}
        for also in a.also:
            name, directory = also.split("=", 1)
            ready[name], visual[name] = drafts.load(directory).to(a.device), "none"
        found, counted = {name: {} for name in ready}, {}
        for frames, (size, videos) in (SMOKE_FRAMES if a.smoke else FRAMES).items():
            said = 0
            videos = max(size, round(videos * a.times))
            for index in range(videos // size):
                shape, b = captions(frames, size, index, text)
                rows = self.target.rows(shape, {k: torch.from_numpy(v) for k, v in b.items()})
                for n in range(size):
                    if not a.smoke and not trees.says_it_itself(rows, n):
                        continue
                    said += 1
                    for name, draft in ready.items():
                        for see in dict(none=[False], few=[True]).get(visual[name], [True, False]):
                            own = as_read(draft, rows, visual[name]) if see else rows
                            tokens, passes = trees.accepted(draft, own, n, self.target.head, shape_of_tree, see)
                            cell = found[name].setdefault("visual rows read" if see else "text-anchored", {}).setdefault(frames, [])
                            cell.append((tokens, passes))
            counted[frames] = said
            self.log(f"{frames} frames: {said} of {videos} captions")
            for name in ready:
                self.log(" ", name, *(f"{how}: {tau(cells[frames]):.2f}" for how, cells in found[name].items() if frames in cells))
        return found, counted


def tau(cells):
    """Tokens a pass of all captions together, the target's own token counted."""
    return sum(tokens for tokens, _ in cells) / max(1, sum(count for _, count in cells))


def kept(short, long, draws=2000):
    """What tau of the long videos is of that of the short ones: the share and its 95 % interval, captions drawn anew."""
    luck = random.Random(1)
    shares = sorted(tau(luck.choices(long, k=len(long))) / tau(luck.choices(short, k=len(short))) for _ in range(draws))
    return dict(share=tau(long) / tau(short), low=shares[draws // 40], high=shares[-draws // 40])


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--target", default=str(MODEL), help="the model's directory")
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--also", nargs="*", default=[], metavar="NAME=DIRECTORY")
    parser.add_argument("--start", help="a saved draft that all begin with, instead of the target's last layer")
    parser.add_argument("--times", type=float, default=1, help="so many times the usual held-out videos, which are 32 to 48 by length")
    parser.add_argument("--longest", type=int, default=1 << 20, help="frames of the longest video in training")
    parser.add_argument("--tree", default="30-4-8", help="total-depth-width")
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--text-share", type=float, default=0.15)
    parser.add_argument("--peak", type=float, default=2e-3)
    parser.add_argument("--low", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--every", type=float, default=20, help="seconds between lines of the log")
    parser.add_argument("--smoke", action="store_true", help="the whole road on a CPU, in a minute")
    a = parser.parse_args(words)
    if a.smoke:
        a.device, a.workers, a.tree = "cpu", 0, "6-2-2"
    try:
        stages_of(a)
    except ValueError as e:
        parser.error(f"--longest: {e}")
    return a


def main():
    a = arguments()
    pathlib.Path(a.out).mkdir(parents=True, exist_ok=True)
    ablation = Ablation(a)
    done = ablation.train()
    found, counted = ablation.measure()
    result = dict(arguments=vars(a), steps=done, captions=counted,
                  accepted={name: {how: {frames: dict(tau=tau(cell), tokens=sum(t for t, _ in cell), passes=sum(p for _, p in cell))
                                         for frames, cell in cells.items()} for how, cells in ways.items()} for name, ways in found.items()})
    if not a.smoke:
        result["kept"] = {name: {how: kept(cells[128], cells[4096]) for how, cells in ways.items()} for name, ways in found.items()}
    written = json.dumps(result, indent=1)
    (pathlib.Path(a.out) / "ablation.json").write_text(written + "\n")
    print(ablation_table.markdown(json.loads(written)), flush=True)
    os._exit(0)  # workers of an endless stream


if __name__ == "__main__":
    main()
