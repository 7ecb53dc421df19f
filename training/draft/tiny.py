"""The bundled model as a draft's target: questions of the small world, read by the model with its states kept.

What a draft learns from is `Tiny.rows(shape, batch)`; another target needs a class like this one (README.md).
"""
import collections
import dataclasses
import random

import numpy as np
import torch

from training.draft import model as drafts, steps
from training.tiny import batches, model as models
from training.tiny.tokenizer import Text
from training.world import render

S = batches.Shape
# stage -> {shape: weight}. The text stage asks about what was read, before any video; of its batches only such branches are used.
STAGES = {
    "text": {S(16, (4, 4), 48, 408, passages=200, text_first=True, label="text"): 0.4,
             S(16, (4, 4), 48, 408, passages=200, several=True, text_first=True, label="facts"): 0.6},
    "visual": {S(2, (4, 4), 96, 168, image=True): 0.1, S(16, (4, 4), 48, 304): 0.15, S(64, (4, 4), 28, 408): 0.35, S(64, (4, 7), 16, 408): 0.1,
               S(256, (4, 4), 8, 432): 0.12, S(1024, (4, 4), 2, 440): 0.06, S(4096, (4, 4), 1, 440): 0.04,
               S(64, (4, 4), 24, 408, passages=260): 0.14},
}
SMOKE = {"text": {S(2, (4, 4), 1, 400, passages=200, text_first=True, several=True, label="facts"): 1.0},
         "visual": {S(16, (4, 4), 1, 240): 0.5, S(2, (4, 4), 2, 120, image=True): 0.5}}
HELD_OUT = S(64, (4, 4), 16, 408)


def no_longer_than(stages, frames):
    """The same stages without videos of more frames."""
    for name, shapes in stages.items():
        shortest = min(shape.frames for shape in shapes)
        if frames < shortest:
            raise ValueError(f"the {name} stage has no videos of {frames} frames or fewer: its shortest have {shortest}")
    return {name: {shape: weight for shape, weight in shapes.items() if shape.frames <= frames} for name, shapes in stages.items()}


def make(seed, shape, text):
    """A batch with its captions; every answer's tokens count the same."""
    rng = random.Random(f"draft/{seed}/{shape.name}")
    made = []
    for i in range(shape.batch):
        s = batches.sample(rng, f"draft/{seed}/{shape.name}/{i}", shape, text, drill=True)
        s.branches.sort(key=lambda b: b[2][0].skill != "caption")  # long answers first: they are what drafts are for
        made.append(s)
    return collated(made, shape, text)


def collated(made, shape, text):
    """Samples as a batch, with what a draft wants to know of them."""
    b = batches.collate(made, shape, text)
    b["text_before"] = _text_before(b["prefix_ids"], text)
    b["first_visual"] = np.array([s.visual_rows[0] if len(s.visual_rows) else len(s.prefix.ids) for s in made], np.int64)
    wanted = np.zeros(b["ids"].shape, bool)
    said = np.zeros(b["ids"].shape, np.int64)
    wanted.reshape(-1)[b["source"]] = True
    said.reshape(-1)[b["source"]] = b["target"]
    b["wanted"], b["said"] = wanted, said
    return {k: b[k] for k in ("drawn", "prefix_ids", "prefix_positions", "visual_rows", "ids", "positions", "branch", "limit", "wanted", "said",
                              "text_before", "first_visual")}


def _text_before(ids, text):
    """For each row of the beginning and the one after it, the last text row before; -1: none"""
    visual = (ids == text.image_pad) | (ids == text.video_pad)
    place = np.where(visual, -1, np.arange(ids.shape[1])[None])
    last = np.maximum.accumulate(place, 1)
    return np.concatenate([np.full((len(ids), 1), -1), last], 1)


def frequent_tokens(count, text, stages=None):
    """The tokens that answers of the training have most often, by id. The end of an answer is among them."""
    shapes = [shape for stage in (stages or STAGES).values() for shape in stage if shape.image or 16 <= shape.frames <= 64]
    found = collections.Counter()
    for i, shape in enumerate(shapes * 2):
        b = make(f"vocabulary/{i}", dataclasses.replace(shape, batch=min(shape.batch, 16)), text)
        found.update(b["said"][b["wanted"]].tolist())
    return sorted(token for token, _ in found.most_common(count))


class Stream(torch.utils.data.IterableDataset):
    """Endless (shape, batch) of the stage under way."""

    def __init__(self, seed, stages, stage):
        self.seed, self.stages, self.stage = seed, stages, stage

    def __iter__(self):
        torch.set_num_threads(1)
        info = torch.utils.data.get_worker_info()
        worker, text, count = info.id if info else 0, Text(), 0
        rng = random.Random(f"draft/{self.seed}/{worker}")
        while True:
            name = list(self.stages)[self.stage.value]
            shapes = self.stages[name]
            shape = rng.choices(list(shapes), list(shapes.values()))[0]
            b = make(f"{self.seed}/{worker}/{count}", shape, text)
            count += 1
            yield name, shape, {k: torch.from_numpy(v) for k, v in b.items()}


def batches_of(seed, stages, stage, workers, pinned):
    """An iterator over a Stream. Its workers start at once: before the device is touched."""
    return iter(torch.utils.data.DataLoader(
        Stream(seed, stages, stage), batch_size=None, num_workers=workers, prefetch_factor=3 if workers else None,
        pin_memory=pinned, multiprocessing_context="fork" if workers else None))


class Tiny:
    def __init__(self, directory, device, dtype):
        self.device, self.dtype = torch.device(device), dtype
        self.model = models.Model(models.read_config(directory)).to(self.device).eval()
        self.model.load(directory)
        self.renderer, self.drawn = render.Renderer(self.device), 0
        self.text = Text()
        self.layers = self.model.config.layers
        self.head = self.model.model.embed_tokens.weight.detach()

    def draft(self, directory, start=None):
        """One that begins like the target's last layer, or the saved one in the directory `start`."""
        if start:
            draft = drafts.load(start)
            draft.scale_inputs(self.sizes())
            return draft.to(self.device)
        draft = drafts.Draft(drafts.config_of(directory))
        last = {k: v.detach().cpu() for k, v in self.model.model.layers[-1].named_parameters()}
        draft.begin_like(last, self.model.model.norm.weight.detach().cpu(), self.sizes())
        return draft.to(self.device)

    def sizes(self):
        """Root mean squares of embeddings and of states, over a few answers."""
        shape = S(2, (4, 4), 4, 168, image=True)
        rows = self.rows(shape, {k: torch.from_numpy(v) for k, v in make("sizes", shape, self.text).items()})
        answers = torch.cat([torch.zeros_like(rows.visual[:, :rows.beginning]), rows.wanted], 1)
        return [float(x[answers].float().pow(2).mean().sqrt()) for x in (rows.embeddings, rows.high)]

    @torch.no_grad()
    def rows(self, shape, b, stage="visual", bridge="middle"):
        """bridge: visual rows stand for the target's middle layer, or for its raw visual embeddings ("raw")"""
        b = {k: v.to(self.device, non_blocking=True) for k, v in b.items()}
        batch, prefix = b["prefix_ids"].shape
        self.drawn += 1
        patches = self.renderer.model_patches(b["drawn"], shape.grid[0] * 28, shape.grid[1] * 28, 0, 2 * self.drawn + 3).to(self.dtype)
        visual = self.model.look(patches, *shape.grid).view(batch, -1, self.model.config.hidden)
        middle = self.layers // 2 - 1
        taps = {middle: None, self.layers - 2: None}
        x = self.model.branches(visual, b, taps=taps)
        ids = torch.cat([b["prefix_ids"], b["ids"]], 1)
        is_visual = torch.zeros(ids.shape, dtype=torch.bool, device=self.device)
        is_visual[:, :prefix] = (b["prefix_ids"] == self.text.image_pad) | (b["prefix_ids"] == self.text.video_pad)
        embeddings = self.model.embed(ids).to(self.dtype)
        row = b["visual_rows"].reshape(-1)
        row = torch.div(row, prefix, rounding_mode="floor") * ids.shape[1] + row % prefix
        embeddings.view(-1, embeddings.shape[-1])[row] = visual.reshape(-1, visual.shape[-1]).to(self.dtype)
        place = torch.arange(b["ids"].shape[1], device=self.device)
        first = torch.ones_like(b["branch"], dtype=torch.bool)
        first[:, 1:] = b["branch"][:, 1:] != b["branch"][:, :-1]
        start = b["text_before"].gather(1, b["limit"].clamp(max=prefix))
        before = torch.where(first, start, prefix + place - 1)
        wanted = b["wanted"]
        if stage == "text":
            wanted = wanted & (b["limit"] <= b["first_visual"].unsqueeze(1))
        picked = wanted.reshape(-1)
        target = torch.log_softmax(self.model.logits(x[picked]), -1)
        positions = torch.cat([b["prefix_positions"], b["positions"].unsqueeze(0).expand(3, -1, -1)], 2)
        return steps.Rows(embeddings, taps[self.layers - 2], embeddings if bridge == "raw" else taps[middle], is_visual,
                          torch.cat([b["text_before"][:, :prefix], before], 1), positions, b["branch"], b["limit"], wanted, target,
                          b["said"].reshape(-1)[picked])
