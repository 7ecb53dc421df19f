"""A video of the world as data: scenes, the things in them, cards, and how all of it is drawn.

`sample` makes a video from a seed; `parameters` turns it into one row of numbers per frame for the
renderer. Lengths are in units of 1/112 of the frame's short side, so that one video can be drawn at
any size; times are frames. Questions are asked about these objects, never about pixels.
"""
import dataclasses
import math
import random

import numpy as np

from training.world import names

UNITS = 112.0
SPRITES = 4  # three that stand still and one that moves, drawn in this order
FIRST_PICTURE = len(names.SHAPES)  # kinds below are shapes, from here on pictures
SPRITE0, CARD0, STYLE0 = 11, 11 + 8 * SPRITES, 11 + 8 * SPRITES + 12
# not drawn, only learned from: background, direction, colours + 1 of mover, still things and card
LABEL0 = STYLE0 + 4
COLUMNS = LABEL0 + 5


@dataclasses.dataclass(frozen=True)
class Thing:
    kind: int         # a shape, or FIRST_PICTURE + picture
    colour: int = -1  # of a shape; -1 for pictures

    @property
    def is_shape(self):
        return self.kind < FIRST_PICTURE

    @property
    def name(self):
        if self.is_shape:
            return f"{names.COLOUR_NAMES[self.colour]} {names.SHAPES[self.kind]}"
        return names.PICTURES[self.kind - FIRST_PICTURE]

    @property
    def plural(self):
        if self.is_shape:
            shape = names.SHAPES[self.kind]
            return f"{names.COLOUR_NAMES[self.colour]} {shape}{'es' if shape.endswith('s') else 's'}"
        return names.PLURALS[self.kind - FIRST_PICTURE]

    @property
    def group(self):
        return "shape" if self.is_shape else names.PICTURE_GROUP[self.kind - FIRST_PICTURE]


@dataclasses.dataclass(frozen=True)
class Place:
    """A background with what lives on it. A place that returns later looks the same again."""
    background: int
    mover: Thing
    direction: int
    still: Thing | None
    still_count: int
    look: dict = dataclasses.field(compare=False, hash=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Scene:
    start: int
    stop: int
    place: Place
    entered: int  # frames this place was already seen before, so that motion goes on


@dataclasses.dataclass(frozen=True)
class Card:
    start: int
    stop: int
    colour: int
    content: int  # a glyph, or len(GLYPHS) + picture
    look: dict = dataclasses.field(compare=False, hash=False, repr=False)

    @property
    def colour_name(self):
        return names.COLOUR_NAMES[self.colour]

    @property
    def picture(self):
        return self.content - len(names.GLYPHS)

    @property
    def shows(self):
        """What the card shows, as an answer."""
        if self.content < len(names.GLYPHS):
            return names.GLYPHS[self.content]
        return names.with_article(names.PICTURES[self.picture])

    @property
    def group(self):
        if self.content < len(names.GLYPHS):
            return "number" if names.GLYPHS[self.content].isdigit() else "letter"
        return names.PICTURE_GROUP[self.picture]


@dataclasses.dataclass
class World:
    frames: int
    fps: float
    width: float   # units
    height: float
    scenes: list
    cards: list
    style: dict
    is_image: bool = False

    def until(self, frame):
        """The same world as far as it has been seen when `frame` frames have passed."""
        scenes = [dataclasses.replace(s, stop=min(s.stop, frame)) for s in self.scenes if s.start < frame]
        cards = [c for c in self.cards if c.stop <= frame]
        return dataclasses.replace(self, frames=frame, scenes=scenes, cards=cards)

    def can_stop_at(self, frame):
        """Whether nothing is only half seen after `frame` frames."""
        return (all(not c.start < frame < c.stop for c in self.cards)
                and all(frame <= s.start or frame - s.start >= 8 for s in self.scenes))


def _shade(rng, rgb, spread=14):
    return [min(255.0, max(0.0, v + rng.uniform(-spread, spread))) / 255 for v in rgb]


def _split(rng, total, parts, least):
    """`parts` random lengths of at least `least` that sum to `total`."""
    weights = [rng.gammavariate(1.5, 1.0) for _ in range(parts)]
    spare = total - least * parts
    cuts, seen = [0], 0.0
    for w in weights:
        seen += w
        cuts.append(round(seen / sum(weights) * spare))
    return [least + b - a for a, b in zip(cuts, cuts[1:])]


def _thing(rng, pictures, avoid_colour, avoid_shapes):
    if rng.random() < 0.72:
        return Thing(FIRST_PICTURE + pictures.pop())
    colours = [i for i, c in enumerate(names.COLOUR_NAMES) if c != avoid_colour]
    shapes = [i for i in range(len(names.SHAPES)) if i not in avoid_shapes]
    return Thing(rng.choice(shapes), rng.choice(colours))


def _spots(rng, width, height, halves):
    """Centres for sprites of the given half sizes that do not overlap, or fewer when crowded."""
    placed = []
    for half in halves:
        for _ in range(40):
            x, y = rng.uniform(half, width - half), rng.uniform(half, height - half)
            if all(max(abs(x - a), abs(y - b)) > 1.05 * (half + h) for a, b, h in placed):
                placed.append((x, y, half))
                break
    return placed


def _picture_spots(rng, width, height, half, count):
    """Where card, mover and still things stand in a single picture: nothing hides anything."""
    while True:
        spots = _spots(rng, width, height, [22.0, half] + [rng.uniform(11, 14)] * count)
        if len(spots) >= 2 + min(count, 1):
            return spots


def _place(rng, background, pictures, taken, width, height, image):
    colour = names.BACKGROUND_NAMES[background // len(names.PATTERNS)]
    while True:
        mover = _thing(rng, pictures, colour, ())
        if mover.name not in taken:
            break
    taken.add(mover.name)
    half = rng.uniform(13, 19)
    still, look = None, dict(half=half)
    count = rng.choice((0, 0, 1, 1, 2, 3))
    if image:
        look["card"], look["mover"], *look["still"] = _picture_spots(rng, width, height, half, count)
    else:
        look["still"] = _spots(rng, width, height, [rng.uniform(11, 15)] * count)
    count = len(look["still"])
    if count:
        while True:
            still = _thing(rng, pictures, colour, (mover.kind,))
            if still.name not in taken and still.name not in names.UNCOUNTED:
                break
        taken.add(still.name)
    base = [v * rng.uniform(0.66, 0.86) for v in _shade(rng, names.BACKGROUND_COLOURS[colour], 12)]
    dark = rng.uniform(0.40, 0.60)
    wave, angle = 2 * math.pi / rng.uniform(15, 30), rng.uniform(0, math.pi)
    look.update(
        base=base, second=[v * dark for v in base], kx=wave * math.cos(angle), ky=wave * math.sin(angle),
        phase=(rng.uniform(0, 6.28), rng.uniform(0, 6.28)), drift=(rng.uniform(-.35, .35), rng.uniform(-.35, .35)),
        speed=rng.uniform(3, 7), across=rng.uniform(0.16, 0.84), offset=rng.uniform(0, 112),
        mover_rgb=_shade(rng, names.COLOURS[names.COLOUR_NAMES[mover.colour]]) if mover.is_shape else (1, 1, 1),
        still_rgb=_shade(rng, names.COLOURS[names.COLOUR_NAMES[still.colour]]) if still and still.is_shape else (1, 1, 1))
    return Place(background, mover, rng.randrange(4), still, count, look)


def _card_look(rng, world, colour):
    small = world.is_image or rng.random() < 0.25
    half = rng.uniform(17, 22) if small else rng.uniform(21, 34)
    x, y = rng.uniform(half, world.width - half), rng.uniform(half, world.height - half)
    if world.is_image:
        x, y, _ = world.scenes[0].place.look["card"]
    rgb = _shade(rng, names.COLOURS[names.COLOUR_NAMES[colour]])
    light = rgb[0] * .3 + rgb[1] * .59 + rgb[2] * .11
    return dict(x=x, y=y, half=half, tall=half * rng.uniform(0.92, 1.0), rgb=rgb, border=rng.choice((0.03, 0.97)), ink=0.04 if light > 0.45 else 0.96, face=rng.randrange(4))


def _scene_count(rng, frames):
    if frames <= 16:
        return rng.randint(1, 2)
    if frames <= 64:
        return rng.randint(1, 5)
    if frames <= 256:
        return rng.randint(2, 8)
    if frames <= 1024:
        return rng.randint(3, 11)
    return rng.randint(5, 14)


SHORT, LONG = 6, 6  # scenes of a still video


def sample(seed, frames, grid=(4, 4), fps=2.0, cards=None, image=False, depths=None, still=False):
    """A video of `frames` frames. grid: height and width in 28-pixel tokens, for the aspect ratio.

    cards: how many; depths: instead, one card at each of these fractions of the length.
    still: nothing moves but the cards; long stretches of one picture, and hard cuts between short ones.
    """
    rng = random.Random(f"world/{seed}")
    short = min(grid)
    width, height = UNITS * grid[1] / short, UNITS * grid[0] / short
    pictures = rng.sample(range(len(names.PICTURES)), len(names.PICTURES))
    backgrounds = rng.sample(range(names.BACKGROUNDS), names.BACKGROUNDS)
    taken, scenes, places, seen = set(), [], [], {}
    count = 1 if image else _scene_count(rng, frames)
    lengths = [frames] if image else _split(rng, frames, count, 8 if frames > 16 else 6)
    if still:
        lengths = [8] * SHORT + _split(rng, frames - 8 * SHORT, LONG, 8)
        count = len(lengths)
        rng.shuffle(lengths)
    start = 0
    for i, length in enumerate(lengths):
        returns = [p for p in places if p is not scenes[-1].place] if scenes else []
        if i == count - 1 and count > 2 and scenes[-1].place is not scenes[0].place and rng.random() < 0.35:
            place = scenes[0].place
        elif returns and rng.random() < 0.18:
            place = rng.choice(returns)
        else:
            place = _place(rng, backgrounds.pop(), pictures, taken, width, height, image)
            places.append(place)
        scenes.append(Scene(start, start + length, place, seen.get(id(place), 0)))
        seen[id(place)] = seen.get(id(place), 0) + length
        start += length
    world = World(frames, fps, width, height, scenes, [], dict(
        noise=rng.choice((0.0, rng.uniform(0, 0.03))), gain=rng.uniform(0.85, 1.12), blur=rng.choice((0.0, 1.0, 1.0)) * rng.uniform(-0.06, 0.2),
        step=rng.choice((0.0, 1.0, 1.0)) * rng.uniform(0.01, 0.09)), image)
    if still:
        world.style.update(noise=0.0)
        for place in places:  # the mover stays where it is seen whole
            place.look.update(drift=(0.0, 0.0), speed=0.0, offset=0.8 * place.look["half"] + 0.5 * min(width, height))
    if depths is not None:
        cards = len(depths)
    if cards is None:
        if image:
            cards = rng.choice((0, 1))
        elif frames <= 16:
            cards = rng.choice((0, 1, 1, 2))
        elif frames >= 256 and rng.random() < 0.2:
            cards = rng.randint(6, 8)
        else:
            cards = rng.choice((0, 1, 2, 3, 4, 5) if frames > 64 else (0, 1, 2, 3, 4))
    _deal(rng, world, cards, pictures, depths)
    return world


def _deal(rng, world, count, pictures, depths=None):
    """Puts `count` cards into the world; each scene keeps at least four frames without one."""
    colours = rng.sample(range(len(names.COLOURS)), count)
    glyphs = rng.sample(range(len(names.GLYPHS)), count)
    busy = []
    for i in range(count):
        for _ in range(60):
            length = 1 if world.is_image else rng.randint(3, 6 if world.frames > 16 else 4)
            start = 0 if world.is_image else rng.randint(0, world.frames - length)
            if depths is not None:
                start = min(world.frames - length, max(0, int(depths[i] * world.frames) + rng.randint(-6, 6)))
            stop = start + length
            if any(start < b + 2 and a < stop + 2 for a, b in busy):
                continue
            if not world.is_image and any(
                    s.stop - s.start - sum(max(0, min(b, s.stop) - max(a, s.start)) for a, b in busy + [(start, stop)]) < 4
                    for s in world.scenes):
                continue
            break
        else:
            continue
        busy.append((start, stop))
        content = glyphs[i] if rng.random() < 0.6 else len(names.GLYPHS) + pictures.pop()
        world.cards.append(Card(start, stop, colours[i], content, _card_look(rng, world, colours[i])))
    world.cards.sort(key=lambda c: c.start)


def parameters(world, steps=1):
    """float32 [frames * steps, COLUMNS]: what the renderer draws; `steps` > 1 draws motion more smoothly."""
    p = np.zeros((world.frames * steps, COLUMNS), np.float32)
    for s in world.scenes:
        look = s.place.look
        rows = p[s.start * steps:s.stop * steps]
        time = np.arange(len(rows), dtype=np.float32) / steps + s.entered
        rows[:, 0:3], rows[:, 3:6] = look["base"], look["second"]
        rows[:, 6], rows[:, 7], rows[:, 8] = s.place.background % len(names.PATTERNS), look["kx"], look["ky"]
        rows[:, 9] = np.mod(look["phase"][0] + look["drift"][0] * time, 2 * np.pi)
        rows[:, 10] = np.mod(look["phase"][1] + look["drift"][1] * time, 2 * np.pi)
        for i, (x, y, half) in enumerate(look["still"]):
            rows[:, SPRITE0 + 8 * i:SPRITE0 + 8 * i + 8] = (x, y, half, s.place.still.kind, *look["still_rgb"], 1)
        half, way = look["half"], s.place.direction
        length, breadth = (world.width, world.height) if way < 2 else (world.height, world.width)
        along = np.mod(look["offset"] + look["speed"] * time, length + 1.6 * half) - 0.8 * half
        if way in (0, 2):
            along = length - along
        across = breadth * look["across"]
        m = SPRITE0 + 8 * (SPRITES - 1)
        rows[:, m:m + 8] = (0, 0, half, s.place.mover.kind, *look["mover_rgb"], 1)
        rows[:, m + (0 if way < 2 else 1)] = along
        rows[:, m + (1 if way < 2 else 0)] = across
        if world.is_image:
            rows[:, m:m + 2] = look["mover"][:2]
        rows[:, LABEL0:LABEL0 + 4] = (s.place.background, way, s.place.mover.colour + 1,
                                      s.place.still.colour + 1 if s.place.still else 0)
    for c in world.cards:
        k = c.look
        p[c.start * steps:c.stop * steps, CARD0:CARD0 + 12] = (
            k["x"], k["y"], k["half"], k["tall"], *k["rgb"], c.content, 1, k["border"], k["ink"], k["face"])
        p[c.start * steps:c.stop * steps, LABEL0 + 4] = c.colour + 1
    style = world.style
    p[:, STYLE0:STYLE0 + 4] = style["noise"], style["gain"], style["blur"], style["step"]
    return p
