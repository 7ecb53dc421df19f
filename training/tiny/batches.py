"""Training batches: worlds as renderer rows, prompts as ids and positions, answers as targets.

One batch has one shape, so every tensor of a shape has the same size. A video carries many questions,
each a branch over the shared prefix: about the whole video, about its first part only (as if asked
while it streams), several turns long, or without any video at all.
"""
import dataclasses
import random

import numpy as np

from training.tiny import prompt
from training.world import captions, passages, questions, scene

SKILLS = questions.CORE + questions.REST
SKILL_INDEX = {s: i for i, s in enumerate(SKILLS)}


@dataclasses.dataclass(frozen=True)
class Shape:
    frames: int
    grid: tuple      # rows, columns of merged tokens (28 pixels)
    batch: int
    rows: int        # branch tokens per video
    passages: int = 0  # text tokens between stretches of video; 0: plain video
    image: bool = False
    several: bool = False     # several facts of one kind in the passages, also when evaluated
    text_first: bool = False  # all passages before the video: questions about them are asked without it
    label: str = ""           # tells shapes apart that only differ in their passages

    @property
    def name(self):
        kind = "image" if self.image else "mixed" if self.passages else "video"
        return f"{kind}{self.frames}x{self.grid[0]}x{self.grid[1]}{self.label}"

    @property
    def drill_facts(self):
        """Short texts full of facts, and little else."""
        return self.several and self.text_first

    @property
    def pairs(self):
        return max(1, self.frames // 2)

    @property
    def visual_tokens(self):
        return self.pairs * self.grid[0] * self.grid[1]


@dataclasses.dataclass
class Sample:
    """One video with its prefix and questions, before it is padded into a batch."""
    world: scene.World
    prefix: prompt.Prefix
    visual_rows: np.ndarray
    open: bool       # the prefix ends inside a video: questions first say vision_end
    branches: list   # [(limit, first position, [Item, ...])]


def _cuts(rng, world, count):
    """Even frames at which no card is on screen, to put passages there."""
    spots = [f for f in range(8, world.frames - 7, 2) if all(not c.start < f < c.stop for c in world.cards)]
    return sorted(rng.sample(spots, min(count, len(spots))))


def sample(rng, seed, shape, text, vary=True, skills=None, count=24, world=None, drill=False):
    """vary: stretched time and streamed questions, for training. skills: which to ask; default all that fit.

    drill: more of what the model finds hard (questions.DRILL, many facts, captions).
    """
    fps = rng.choice((1, 2, 2, 2, 4)) if vary else 2
    world = world or scene.sample(seed, 1 if shape.image else shape.frames, shape.grid, fps, image=shape.image)
    prefix = prompt.Prefix(text)
    interval, shift, gap = prompt.interval_of(world.fps), 0, 0
    if shape.image:
        interval = 0
    elif vary:
        draw = rng.random()
        if draw < 0.25:
            interval = rng.choice((1, 2, 3, 4, 6, 8))
        elif draw < 0.5:
            shift, gap = rng.randrange(3000), rng.randrange(3000)
    facts, visual_rows, text_only = (), [], None

    def show(pairs, opened=True):
        prefix.show(prompt.Visual(pairs, *shape.grid, interval, shape.image, shift), opened)
        visual_rows.append(np.arange(prefix.visual_start, len(prefix.ids)))

    if shape.text_first:
        needles = not shape.several and (not vary or rng.random() < 0.6)
        texts, facts = passages.write(rng, [0], [0], needles, None if needles else min(24, shape.passages // 24))
        prefix.say(text.encode(_filled(rng, texts, shape.passages, text)[0]))
        text_only = -len(prefix.ids), prefix.next
        show(shape.pairs)
        is_open = True
    elif shape.passages:
        cuts = _cuts(rng, world, rng.randint(1, min(8, shape.passages // 64))) or [world.frames]
        closing = rng.random() < 0.5 or cuts[-1] == world.frames
        stops = cuts + [world.frames] * (cuts[-1] != world.frames)
        written = stops if closing else stops[:-1]
        most, needles = None, not vary
        if shape.several:  # a fact is about 14 tokens long
            most, needles = max(len(written), min(rng.choice((3, 6, 12, 24)), shape.passages // 24)), False
        elif drill:
            needles = rng.random() < 0.6
        texts, facts = passages.write(rng, written, [0] * len(written), needles, most)
        texts = _filled(rng, texts, shape.passages, text)
        start = 0
        for i, stop in enumerate(stops):
            show((stop - start) // 2)
            start = stop
            if i < len(texts):
                prefix.say([text.vision_end])
                prefix.say(text.encode(texts[i]))
        is_open = len(texts) < len(stops)
    else:
        show(shape.pairs)
        is_open = True
    wanted = skills or (["image", "chat"] if shape.image else ["text", "binding", "what", "card"] if shape.drill_facts else
                        questions.VIDEO_SKILLS + ["chat", "binding"] + ["text"] * bool(facts))
    # a picture has little to ask about: without a limit most questions would be about what is not there
    items = questions.ask_many(rng, world, count, wanted, facts, drill=drill, most=2 if shape.image else None)
    branches = []
    if shape.image and not skills:
        branches.append((len(prefix.ids), prefix.next, [_description(rng, world, vary)]))
        items = [i for i in items if i.kind != "image_what"]
        rng.shuffle(items)
    if shape.drill_facts:
        branches += [(-prefix.head, prefix.head, [questions.same_words(rng) for _ in range(3)]) for _ in range(2)]
    if not shape.image and (skills is None or "caption" in skills) and rng.random() < (1 if not vary else 0.7 if drill else 0.5):
        branches.append((len(prefix.ids), prefix.next + gap, [questions.Asker(rng, world).ask("caption")]))
    if vary and is_open and not shape.passages and not shape.image and shape.frames >= 32 and rng.random() < 0.5:
        frame = 2 * rng.randint(4, shape.pairs - 1)
        if world.can_stop_at(frame):
            limit = prefix.visual_start + frame // 2 * shape.grid[0] * shape.grid[1]
            for item in questions.ask_many(rng, world.until(frame), 5, questions.VIDEO_SKILLS, whole=False):
                branches.append((limit, prefix.after(frame // 2) + gap, [item]))
    while items:
        turns = [items.pop()]
        if turns[0].alone and rng.random() < 0.75:
            branches.append((-prefix.head, prefix.head, turns))
            continue
        if turns[0].kind == "no_video":
            continue
        if text_only and turns[0].skill == "text":
            branches.append((*text_only, turns))
            continue
        while vary and items and not items[-1].alone and not (text_only and items[-1].skill == "text") and rng.random() < 0.2:
            turns.append(items.pop())
        branches.append((len(prefix.ids), prefix.next + gap, turns))
    return Sample(world, prefix, np.concatenate(visual_rows), is_open, branches)


def _description(rng, world, vary):
    """Of a picture. In training also in the other order at times: whichever thing was named, the other one follows."""
    item = questions.Asker(rng, world).ask("image_what")
    if vary and rng.random() < 0.15:
        item.answer = captions.picture_caption(world, swapped=True) or item.answer
    return item


def _filled(rng, texts, budget, text):
    """Adds filler sentences to the passages, between any two sentences, until their tokens fill the budget."""
    parts = [t.strip().replace(". ", ".\n").splitlines() for t in texts]
    used = sum(len(text.encode(t)) for t in texts)
    while True:
        sentence = passages.filler(rng)
        used += len(text.encode(" " + sentence)) + 1
        if used + 8 > budget:
            break
        part = rng.choice(parts)
        part.insert(rng.randint(0, len(part)), sentence)
    return [" ".join(p or [passages.filler(rng)]) + "\n" for p in parts]


def make(seed, shape, text, vary=True, skills=None, count=24, drill=False):
    """A whole batch as numpy arrays."""
    rng = random.Random(f"batch/{seed}/{shape.name}")
    samples = [sample(rng, f"{seed}/{shape.name}/{i}", shape, text, vary, skills, count, drill=drill) for i in range(shape.batch)]
    return collate(samples, shape, text, drill)


def _weight(item, drill):
    """Of each token of an answer in the loss."""
    return (0.6 if drill else 0.3) if item.skill == "caption" else 0.5 if item.skill == "chat" else 1.0


def collate(samples, shape, text, drill=False):
    batch, rows = len(samples), shape.rows
    prefix = max(len(s.prefix.ids) for s in samples)
    if shape.passages:
        prefix = len(prompt.Prefix(text).ids) + shape.visual_tokens + 2 * 10 + shape.passages
    rows -= (prefix + rows) % 8  # masks want aligned rows
    frames = max(2, shape.frames)
    b = dict(drawn=np.zeros((batch, frames, scene.COLUMNS), np.float32),
             prefix_ids=np.full((batch, prefix), text.end_of_text, np.int64),
             prefix_positions=np.zeros((3, batch, prefix), np.int64),
             visual_rows=np.zeros((batch, shape.visual_tokens), np.int64),
             ids=np.full((batch, rows), text.end_of_text, np.int64), positions=np.zeros((batch, rows), np.int64),
             branch=np.full((batch, rows), -1, np.int64), limit=np.ones((batch, rows), np.int64))
    source, target, weight, item_of, skill, kinds = [], [], [], [], [], []
    for n, s in enumerate(samples):
        b["drawn"][n] = scene.parameters(s.world)
        ids, positions = s.prefix.arrays()
        if len(ids) > prefix:
            raise ValueError(f"{shape.name}: a prompt of {len(ids)} tokens where {prefix} fit")
        b["prefix_ids"][n, :len(ids)] = ids
        b["prefix_positions"][:, n, :len(ids)] = positions
        b["visual_rows"][n] = s.visual_rows + n * prefix
        at = 0
        for j, (limit, position, turns) in enumerate(s.branches):
            tokens = [text.vision_end] if s.open and limit >= 0 else []
            spans = []
            for k, item in enumerate(turns):
                tokens = tokens + (prompt.next_question if k else prompt.question)(text, item.question)
                answer = text.encode(item.answer) + [text.end]
                spans.append((len(tokens), answer, item))
                tokens = tokens + answer
            if at + len(tokens) > rows:
                continue
            b["ids"][n, at:at + len(tokens)] = tokens
            b["positions"][n, at:at + len(tokens)] = np.arange(position, position + len(tokens))
            b["branch"][n, at:at + len(tokens)] = j
            b["limit"][n, at:at + len(tokens)] = abs(limit)
            for start, answer, item in spans:
                first = n * rows + at + start - 1
                source.extend(range(first, first + len(answer)))
                target.extend(answer)
                weight.extend([_weight(item, drill)] * len(answer))
                item_of.extend([len(skill)] * len(answer))
                skill.append(SKILL_INDEX[item.skill])
                kinds.append(item.kind)
            at += len(tokens)
    b["drawn"] = b["drawn"].reshape(batch * frames, -1)
    b.update(source=np.array(source, np.int64), target=np.array(target, np.int64), weight=np.array(weight, np.float32),
             item_of=np.array(item_of, np.int64), skill=np.array(skill, np.int64), kinds=kinds)
    return b
