"""Makes evaluation sets: H.264 files (and pictures) of the world, and a JSONL with questions about them.

    python -m training.world.make_set skills --out build/sets/skills --lengths 64 256 --videos 10
    python -m training.world.make_set needle --out build/sets/needle --lengths 64 256 1024 4096 --videos 10
    python -m training.world.make_set moments | pictures | sequence | mixed-needle | mixed-crowd | text-needle | text-crowd | stream | caption | demo ...

DATA.jsonl is what `kinora eval` reads (docs/eval.md), one line per question; training/README.md says what else stands in a
line. Paths are relative to the JSONL. A seed makes the same set again, on any number of processes.
"""
import argparse
import concurrent.futures
import dataclasses
import functools
import json
import multiprocessing
import pathlib
import random
import sys

import torch

from training.world import captions, passages, questions, render, scene, video_file

TOKENS_PER_SENTENCE = 12
SEVERAL = ("which_card_first", "count_cards", "count_times", "same_way", "same_background", "caption")  # whose answer needs all its times
NEEDLES = ("card", "colour_card", "group_card", "is_card", "when_card")


@functools.cache
def _renderer(device):
    return render.Renderer(device)


def _draw(job, device):
    """Writes one file."""
    path, world, height, width, steps, quality, codec = job
    partial = path.with_suffix(".partial.mp4")
    video_file.write(partial, world, _renderer(device), height, width, steps, quality, codec=codec)
    partial.rename(path)


def _draw_alone(job, device):
    """The same in a process of a pool: small windows, so threads would wait for each other more than work."""
    torch.set_num_threads(1)
    _draw(job, device)


def write_files(jobs, device="cpu", processes=1):
    """Draws and encodes what is not there yet. A CPU draws in as many processes; a GPU draws for as many encoders."""
    jobs = sorted((j for j in jobs if not j[0].exists()), key=lambda j: -j[1].frames)  # longest first
    workers = max(1, min(processes, len(jobs)))
    if device != "cpu":
        _renderer(device)
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            list(pool.map(_draw, jobs, [device] * len(jobs)))
    elif workers > 1:
        with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(_draw_alone, jobs, [device] * len(jobs)))
    else:
        for job in jobs:
            _draw_alone(job, device)


class Writer:
    def __init__(self, a):
        self.a, self.out = a, pathlib.Path(a.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.lines, self.jobs, self.grid = [], {}, (a.height // 28, a.width // 28)
        self.askers = []  # (what asks a question in other words, the rest of its line)

    def video(self, name, world, steps=None, scale=1):
        path = self.out / f"{name}.mp4"
        steps = steps or self.a.steps
        self.jobs[path] = (path, world, scale * self.a.height, scale * self.a.width, steps, self.a.quality, self.a.codec)
        return path.name

    def add(self, item, world, where, **more):
        line = dict(id=f"{self.a.kind}-{len(self.lines)}", **where, question=item.question, answer=item.answer)
        if item.kind == "image_what":
            line["answer"] = [a for a in (item.answer, captions.picture_caption(world, swapped=True)) if a]
        if item.options:
            line["choices"] = item.options  # not `options`: the model is not asked to choose a letter
        line.update(type=item.skill, kind=item.kind, times=[[round(s / world.fps, 3), round(e / world.fps, 3)] for s, e in item.evidence])
        if item.kind in SEVERAL and len(line["times"]) > 1:
            line["all_times"] = True
        if "video" in where or "parts" in where:
            line.update(fps=world.fps, **(dict(frames=world.frames, all_frames=True) if self.a.steps == 1 else {}))
        line.update(more)
        if item.kind == "caption":
            line["events"] = [t.strip() for t in item.answer.split(".") if t.strip()]
        self.lines.append(line)

    def reword(self):
        """Asks everything with an asker in other words too, after the rest, whose numbers stay as they are."""
        known = {(json.dumps(where), item.question) for _, item, _, where, _ in self.askers}
        for ask, first, world, where, more in self.askers * (self.a.wordings - 1):
            for item in (ask() for _ in range(12)):
                key = json.dumps(where), item.question if item else ""
                if item and item.answer == first.answer and key not in known:
                    known.add(key)
                    item.evidence = first.evidence
                    self.add(item, world, where, **more)
                    break

    def close(self):
        path = self.out / "DATA.jsonl"
        partial = self.out / "DATA.jsonl.partial"
        partial.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        partial.rename(path)
        print(f"{path}: {len(self.lines)} questions, {len(self.jobs)} videos")


def _world(w, length, i, **options):
    return scene.sample(f"set/{w.a.kind}/{w.a.seed}/{length}/{i}", length, w.grid, w.a.fps, **options)


def _rng(w, *names):
    return random.Random("/".join(map(str, ("set", w.a.kind, w.a.seed, *names))))


def skills(w):
    """Every skill, the same number of questions of each from every video."""
    each = max(1, w.a.questions // len(questions.VIDEO_SKILLS))
    for length in w.a.lengths:
        for i in range(w.a.videos):
            world, rng = _world(w, length, i), _rng(w, length, i)
            where = dict(video=w.video(f"skills-{length}-{i}", world))
            for skill in questions.VIDEO_SKILLS + ["caption"]:
                for item in questions.ask_many(rng, world, 1 if skill == "caption" else each, [skill]):
                    w.add(item, world, where)
            _mixed(w, length, i, "text", each)
    for i in range(w.a.videos):
        world, rng, where = _picture(w, i)
        for item in questions.ask_many(rng, world, each, ["image"]):
            w.add(item, world, where)
        for item in questions.ask_many(rng, world, each, ["chat"]):
            if item.kind == "talk":
                w.add(item, world, {})


def _picture(w, i):
    """The i-th picture of the set: what is on it, a source of chance, where it is."""
    world = _world(w, 1, i, image=True)
    path = w.out / f"image-{i}.png"
    video_file.write_image(path, world, _renderer("cpu"), w.a.height, w.a.width)
    return world, _rng(w, "image", i), dict(image=path.name)


def pictures(w):
    """Single pictures: a description of each, and one question of every other kind."""
    for i in range(w.a.videos):
        world, rng, where = _picture(w, i)
        items = questions.ask_many(rng, world, 40, ["image"], most=1)
        for item in [questions.Asker(rng, world).ask("image_what")] + [k for k in items if k.kind != "image_what"]:
            w.add(item, world, where)


def moments(w):
    """What a video has few of: up to five of its cards (what they show, when), its two ends
    compared, `--questions` wordings of it, and whether two things move the same way."""
    for length in w.a.lengths:
        for i in range(w.a.videos):
            world, rng = _world(w, length, i), _rng(w, length, i)
            where = dict(video=w.video(f"moments-{length}-{i}", world))
            asker = questions.Asker(rng, world)
            made = [asker.ask("same_background") for _ in range(4 * w.a.questions)]
            made = list({m.question: m for m in made if m}.values())[:w.a.questions]
            made += questions.ask_many(rng, world, 2, ["binding"])
            for card in rng.sample(world.cards, min(5, len(world.cards))):
                asker.cards = [card]
                made += [m for m in (asker.ask("card"), asker.ask("when_card")) if m]
            for item in made:
                w.add(item, world, where)


def needle(w):
    """Cards at known depths; each is asked for by colour, by content, by group, by presence and by part of the video."""
    for length in w.a.lengths:
        for i in range(w.a.videos):
            rng = _rng(w, length, i)
            bins = [(i + k) % 10 for k in range(8 if length >= 128 else 4)]
            depths = sorted((b + rng.uniform(0.1, 0.9)) / 10 for b in bins)
            world = _world(w, length, i, depths=depths, still=w.a.still)
            where = dict(video=w.video(f"needle-{length}-{i}", world))
            asker = questions.Asker(rng, world)
            for kind in NEEDLES:
                for card in world.cards:
                    asker.cards = [card]
                    item = asker.ask(kind)
                    if item and item.answer != "no":
                        more = dict(depth=round(card.start / world.frames, 4))
                        w.add(item, world, where, **more)
                        w.askers.append((functools.partial(_ask_about, asker, "cards", card, kind), item, world, where, more))
    w.reword()


def sequence(w):
    """What comes before and after what, how often and when: answers that need several places of a long video with eight cards."""
    for length in w.a.lengths:
        for i in range(w.a.videos):
            world, rng = _world(w, length, i, cards=8), _rng(w, length, i)
            where = dict(video=w.video(f"sequence-{length}-{i}", world))
            for item in questions.ask_many(rng, world, w.a.questions, ["order", "when", "count"]):
                w.add(item, world, where)


def _mixed(w, length, i, skill, count):
    """One prompt of alternating stretches of video and text; text is about a quarter of the tokens."""
    world, rng = _world(w, length, f"mixed{i}"), _rng(w, "mixed", length, i)
    spots = [f for f in range(8, length - 7, 2) if all(not c.start < f < c.stop for c in world.cards)]
    stops = sorted(rng.sample(spots, min(len(spots), 2 if length <= 64 else 6))) + [length]
    budget = length // 2 * w.grid[0] * w.grid[1] / 3
    sentences = max(1, round(budget / TOKENS_PER_SENTENCE / len(stops)))
    if skill == "crowd":
        sentences = max(1, sentences - 2 * w.a.facts // len(stops))
        texts, facts = passages.crowd(rng, stops, [sentences] * len(stops), w.a.facts, w.a.facts)
    else:
        texts, facts = passages.write(rng, stops, [sentences] * len(stops), needles=True)
    parts, start = [], 0
    for k, (stop, text) in enumerate(zip(stops, texts)):
        part = _cut(world, start, stop)
        parts.append(dict(video=w.video(f"mixed-{length}-{i}-{k}", part)))
        parts.append(dict(text=text))
        start = stop
    asker = questions.Asker(rng, world, facts)
    made = [(m, "facts", f, "text_fact") for f in facts for m in _about(asker, f, 2)] if skill == "text" else []
    if skill == "crowd":
        made = [(m, "facts", f, "text_fact") for f in rng.sample(facts, len(facts)) for m in _about(asker, f, 1)]
    if skill == "card":
        made = [(m, "cards", c, kind) for kind in NEEDLES[:4] for c in world.cards for m in _about_card(asker, c, kind)]
    for item, *about in made[:count]:
        more = dict(depth=round(min(e[0] for e in item.evidence) / length, 4))
        w.add(item, world, dict(parts=parts), **more)
        w.askers.append((functools.partial(_ask_about, asker, *about), item, world, dict(parts=parts), more))


def _ask_about(asker, kind, thing, question):
    setattr(asker, kind, [thing])
    return asker.ask(question)


def _about(asker, fact, wordings):
    """One fact asked for in several wordings."""
    asker.facts = [fact]
    made = [asker.ask("text_fact") for _ in range(3 * wordings)]
    return list({m.question: m for m in made}.values())[:wordings]


def _about_card(asker, card, kind):
    asker.cards = [card]
    item = asker.ask(kind)
    return [item] if item and item.answer != "no" else []


def _cut(world, start, stop):
    """The stretch of a world between two frames, as a world of its own for drawing."""
    scenes = [dataclasses.replace(s, start=max(s.start, start) - start, stop=min(s.stop, stop) - start,
                                  entered=s.entered + max(0, start - s.start)) for s in world.scenes if s.start < stop and s.stop > start]
    cards = [dataclasses.replace(c, start=c.start - start, stop=c.stop - start) for c in world.cards if start <= c.start < stop]
    return dataclasses.replace(world, frames=stop - start, scenes=scenes, cards=cards)


def mixed_needle(w):
    for length in w.a.lengths:
        for i in range(w.a.videos):
            _mixed(w, length, i, "text", 6)
            _mixed(w, length, i, "card", w.a.questions)
    w.reword()


def mixed_crowd(w):
    """Facts of many people, and sentences like them, in the text between stretches of video."""
    for length in w.a.lengths:
        for i in range(w.a.videos):
            _mixed(w, length, i, "crowd", w.a.questions)


def text_needle(w):
    """Text only, in the manner of RULER: one fact of each kind in `length` tokens, about, of other sentences."""
    for length in w.a.lengths:
        for i in range(w.a.videos):
            rng = _rng(w, length, i)
            count = max(1, length // (10 * TOKENS_PER_SENTENCE))
            texts, facts = passages.write(rng, list(range(10)), [count] * 10, needles=True)
            world = scene.World(length, w.a.fps, 0, 0, [], [], {})
            asker = questions.Asker(rng, world)
            for fact in facts:
                for item in _about(asker, fact, 2):
                    item.evidence = []
                    where, more = dict(parts=[dict(text="".join(texts))]), dict(depth=(fact.frame + 0.5) / 10, length=length)
                    w.add(item, world, where, **more)
                    w.askers.append((functools.partial(_ask_about, asker, "facts", fact, "text_fact"), item, world, where, more))
    w.reword()


def text_crowd(w):
    """Text only, many facts of each kind about many people, and sentences like them about others: `--facts` in `length` tokens, about."""
    for length in w.a.lengths:
        for i in range(w.a.videos):
            rng = _rng(w, length, i)
            count = max(1, (length // TOKENS_PER_SENTENCE - 2 * w.a.facts) // 10)
            texts, facts = passages.crowd(rng, list(range(10)), [count] * 10, w.a.facts, w.a.facts)
            world = scene.World(length, w.a.fps, 0, 0, [], [], {})
            asker = questions.Asker(rng, world)
            where = dict(parts=[dict(text="".join(texts))])
            for fact in rng.sample(facts, min(len(facts), w.a.questions)):
                for item in _about(asker, fact, 1):
                    item.evidence = []
                    w.add(item, world, where, depth=(fact.frame + 0.5) / 10, length=length)


def stream(w):
    """Questions asked while the video runs: `at` seconds, knowing only what came before."""
    for length in w.a.lengths:
        for i in range(w.a.videos):
            world, rng = _world(w, length, i), _rng(w, length, i)
            where = dict(video=w.video(f"stream-{length}-{i}", world))
            moments = [f for f in range(16, length + 1, 2) if world.can_stop_at(f)]
            for frame in sorted(rng.sample(moments, min(len(moments), max(1, w.a.questions // 4)))):
                for item in questions.ask_many(rng, world.until(frame), 4, questions.CORE, whole=False):
                    w.add(item, world, where, end=frame / world.fps)


def caption(w):
    for length in w.a.lengths:
        made, seed = 0, 0
        while made < w.a.videos:
            world = _world(w, length, seed)
            seed += 1
            if not (5 if length < 256 else 8) <= len(captions.events(world)) <= captions.LIMIT:
                continue
            where = dict(video=w.video(f"caption-{length}-{made}", world))
            w.add(questions.Asker(_rng(w, length, made), world).ask("caption"), world, where)
            made += 1


def demo(w):
    """A clip of a minute that is pleasant to watch, with the questions the demo asks. Sampled at 2 frames a second."""
    w.grid, w.a.height, w.a.width = (4, 7), 112, 196
    seed = 0
    while True:
        world = scene.sample(f"demo/{w.a.seed}/{seed}", 120, w.grid, 2.0, cards=3)
        pictures = [s.place.mover for s in world.scenes if not s.place.mover.is_shape]
        if len(world.cards) == 3 and 5 <= len(world.scenes) <= 6 and len(pictures) == len(world.scenes):
            break
        seed += 1
    world.style.update(noise=0.0, gain=1.0, blur=0.0, step=0.0)
    where = dict(video=w.video("demo", world, steps=12, scale=2))
    asker = questions.Asker(_rng(w, "demo"), world)
    for kind in ("what_mover", "card", "thing_after", "count_cards", "motion_thing", "caption"):
        w.add(asker.ask(kind), world, where)


MAKERS = {"skills": skills, "moments": moments, "pictures": pictures, "needle": needle, "sequence": sequence,
          "mixed-needle": mixed_needle, "mixed-crowd": mixed_crowd, "text-needle": text_needle, "text-crowd": text_crowd,
          "stream": stream, "caption": caption, "demo": demo}


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=list(MAKERS))
    parser.add_argument("--out", required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64], help="frames per video, even; of text-needle tokens")
    parser.add_argument("--videos", type=int, default=4, help="per length")
    parser.add_argument("--questions", type=int, default=22, help="per video, about")
    parser.add_argument("--wordings", type=int, default=1, help="needle sets: ask the same N times in other words")
    parser.add_argument("--still", action="store_true", help="needle sets: long stretches in which nothing moves, and hard cuts")
    parser.add_argument("--facts", type=int, default=45, help="of a crowd, each with another sentence like it; at most 45")
    parser.add_argument("--height", type=int, default=112)
    parser.add_argument("--width", type=int, default=112)
    parser.add_argument("--fps", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=1, help="frames of the file for each that is looked at")
    parser.add_argument("--codec", choices=list(video_file.CODECS), default="libx264", help="mpeg4 where ffmpeg has no libx264")
    parser.add_argument("--quality", type=int, default=20, help="H.264 rate factor, or quantiser of MPEG-4; smaller is better")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1, help="that draw and encode at the same time")
    a = parser.parse_args(words)
    if a.height % 28 or a.width % 28 or any(n % 2 or n < 16 for n in a.lengths):
        sys.exit("height and width must be multiples of 28, lengths even and at least 16")
    return a


def prepare(words=None):
    """A set as a Writer: its questions are made, its videos are not drawn yet."""
    w = Writer(arguments(words))
    MAKERS[w.a.kind](w)
    return w


def main():
    w = prepare()
    write_files(w.jobs.values(), w.a.device, w.a.processes)
    w.close()


if __name__ == "__main__":
    main()
