"""Vision first: throw-away heads that name what every visual token shows.

Without this the pictures stay at chance for most of the training time. Single frame pairs are drawn
straight from random numbers on the device; labels come from the same numbers. A token is asked about the
thing whose centre lies in it; tokens that only touch a thing are not asked.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

from training.world import names, scene

WHAT = 1 + scene.FIRST_PICTURE + len(names.PICTURES) + len(names.GLYPHS)  # nothing, shapes, pictures, glyphs
COLOUR = 1 + 2 * len(names.COLOURS)  # none, of shapes, of cards
TOKEN_CLASSES = [WHAT, COLOUR, 1 + len(names.DIRECTIONS)]
FRAME_CLASSES = [names.BACKGROUNDS, scene.SPRITES]
IGNORED = -100


def _palette(colours, device):
    return torch.tensor([colours[c] for c in colours], dtype=torch.float32, device=device) / 255


def random_pairs(n, grid, device):
    """[2n, COLUMNS] rows of n unrelated frame pairs."""
    def uniform(low, high, *shape):
        return torch.rand(n, *shape, device=device) * (high - low) + low

    def pick(count, *shape):
        return torch.randint(count, (n, *shape), device=device)

    short = min(grid)
    width, height = scene.UNITS * grid[1] / short, scene.UNITS * grid[0] / short
    p = torch.zeros(n, 2, scene.COLUMNS, device=device)
    background = pick(names.BACKGROUNDS)
    pattern = background % len(names.PATTERNS)
    base = _palette(names.BACKGROUND_COLOURS, device)[background // len(names.PATTERNS)]
    base = (base + uniform(-.05, .05, 3)).clamp(0, 1) * uniform(.66, .86, 3)
    wave, angle = 2 * math.pi / uniform(15, 30), uniform(0, math.pi)
    p[:, :, 0:3], p[:, :, 3:6] = base[:, None], (base * uniform(.4, .6, 1))[:, None]
    p[:, :, 6], p[:, :, 7], p[:, :, 8] = pattern[:, None], (wave * angle.cos())[:, None], (wave * angle.sin())[:, None]
    for i in (9, 10):
        p[:, 0, i] = uniform(0, 6.28)
        p[:, 1, i] = p[:, 0, i] + uniform(-.35, .35)

    palette = _palette(names.COLOURS, device)

    def things(columns, x, y, half, on):
        """A thing per row: a picture (72 %) or a coloured shape; returns its colour + 1 (0 for pictures)."""
        is_shape = torch.rand(n, device=device) < 0.28
        kind = torch.where(is_shape, pick(scene.FIRST_PICTURE), scene.FIRST_PICTURE + pick(len(names.PICTURES)))
        colour = pick(len(names.COLOURS))
        rgb = (palette[colour] + uniform(-.055, .055, 3)).clamp(0, 1)
        for c in columns:
            p[:, :, c + 2], p[:, :, c + 3], p[:, :, c + 4:c + 7] = half[:, None], kind[:, None], rgb[:, None]
        p[:, :, columns[0]], p[:, :, columns[0] + 1], p[:, :, columns[0] + 7] = x, y, on[:, None]
        return torch.where(is_shape, colour + 1, 0)

    count = torch.tensor([0, 0, 1, 1, 2, 3], device=device)[pick(6)]
    half = uniform(11, 15)
    columns = [scene.SPRITE0 + 8 * i for i in range(3)]
    x, y = uniform(15, width - 15, 3), uniform(15, height - 15, 3)
    still_colour = things(columns, x[:, :1].expand(n, 2), y[:, :1].expand(n, 2), half, (count > 0).float())
    for i in (1, 2):
        p[:, :, columns[i]], p[:, :, columns[i] + 1] = x[:, i:i + 1], y[:, i:i + 1]
        p[:, :, columns[i] + 7] = (count > i).float()[:, None]
    half, way, speed = uniform(13, 19), pick(4), uniform(3, 7)
    x, y = uniform(0, width), uniform(0, height)
    sign = torch.where(way % 2 == 0, -1.0, 1.0) * speed
    step = torch.stack([torch.zeros_like(sign), sign], 1)
    x = x[:, None] + step * (way < 2)[:, None]
    y = y[:, None] + step * (way >= 2)[:, None]
    mover_colour = things([scene.SPRITE0 + 24], x, y, half, torch.ones(n, device=device))

    on = torch.rand(n, device=device) < 0.45
    colour = pick(len(names.COLOURS))
    rgb = (palette[colour] + uniform(-.055, .055, 3)).clamp(0, 1)
    light = rgb @ torch.tensor([.3, .59, .11], device=device)
    half = uniform(17, 34)
    content = torch.where(torch.rand(n, device=device) < 0.5, pick(len(names.GLYPHS)), len(names.GLYPHS) + pick(len(names.PICTURES)))
    card = [half + uniform(0, 1) * (width - 2 * half), half + uniform(0, 1) * (height - 2 * half), half, half * uniform(.92, 1),
            *rgb.unbind(1), content.float(), on.float(), torch.where(torch.rand(n, device=device) < .5, .03, .97),
            torch.where(light > .45, .04, .96), pick(4).float()]
    p[:, :, scene.CARD0:scene.CARD0 + 12] = torch.stack(card, 1)[:, None]
    often = [(torch.rand(n, device=device) < 0.65).float() for _ in range(3)]
    style = [often[0] * uniform(0, .03), uniform(.85, 1.12), often[1] * uniform(-.06, .2), often[2] * uniform(.01, .09)]
    p[:, :, scene.STYLE0:scene.STYLE0 + 4] = torch.stack(style, 1)[:, None]
    labels = [background, way, mover_colour, still_colour, torch.where(on, colour + 1, 0)]
    p[:, :, scene.LABEL0:scene.LABEL0 + 5] = torch.stack(labels, 1).float()[:, None]
    return p.view(2 * n, -1)


def labels(rows, grid):
    """rows [2n, COLUMNS] -> classes of tokens [n, tokens, 3] and of frame pairs [n, 2]"""
    p = rows.view(-1, 2, scene.COLUMNS)
    n, device = p.shape[0], rows.device
    cell = scene.UNITS / min(grid)
    cy, cx = torch.meshgrid(torch.arange(grid[0], device=device), torch.arange(grid[1], device=device), indexing="ij")
    cx, cy = (cx.reshape(1, -1) + 0.5) * cell, (cy.reshape(1, -1) + 0.5) * cell
    out = torch.zeros(n, grid[0] * grid[1], 3, dtype=torch.long, device=device)
    label = p[:, 0, scene.LABEL0:scene.LABEL0 + 5].long()

    def mark(x, y, half, on, classes):
        """Tokens with the centre get `classes`; tokens the thing covers are not asked about anything."""
        dx, dy = (cx - x[:, None]).abs(), (cy - y[:, None]).abs()
        reach = torch.maximum(dx, dy)
        touched = (reach < half[:, None] + cell / 2) & on[:, None]
        centre = (reach <= cell / 2) & on[:, None]
        out.masked_fill_(touched[..., None], IGNORED)
        out.copy_(torch.where(centre[..., None], torch.stack(classes, 1)[:, None], out))

    zero = torch.zeros(n, dtype=torch.long, device=device)
    for i in range(scene.SPRITES):
        o = scene.SPRITE0 + 8 * i
        moves = i == scene.SPRITES - 1
        s = p[:, :, o:o + 8].mean(1)
        mark(s[:, 0], s[:, 1], s[:, 2], s[:, 7] > 0.5,
             [1 + p[:, 0, o + 3].long(), label[:, 2] if moves else label[:, 3], 1 + label[:, 1] if moves else zero])
    c = p[:, :, scene.CARD0:scene.CARD0 + 12].mean(1)
    content = p[:, 0, scene.CARD0 + 7].long()
    glyphs = len(names.GLYPHS)
    what = torch.where(content < glyphs, WHAT - glyphs + content, 1 + scene.FIRST_PICTURE + content - glyphs)
    mark(c[:, 0], c[:, 1], c[:, 2], c[:, 8] > 0.75, [what, torch.where(label[:, 4] > 0, label[:, 4] + len(names.COLOURS), 0), zero])
    count = sum(p[:, 0, scene.SPRITE0 + 8 * i + 7] for i in range(3)).long()
    frame = torch.stack([label[:, 0], count], 1)
    # a cut inside the pair, or a card in one frame only: not asked
    cut = (p[:, 0, scene.LABEL0] != p[:, 1, scene.LABEL0]) | (p[:, 0, scene.CARD0 + 8] != p[:, 1, scene.CARD0 + 8])
    return out.masked_fill_(cut[:, None, None], IGNORED), frame.masked_fill_(cut[:, None], IGNORED)


class Heads(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.token = nn.Linear(hidden, sum(TOKEN_CLASSES))
        self.frame = nn.Linear(hidden, sum(FRAME_CLASSES))

    def forward(self, tokens, token_labels, frame_labels, score=None):
        """Loss; score [5, 2] gathers right answers and questions, tokens with nothing in them left out."""
        x = F.rms_norm(tokens.float(), tokens.shape[-1:])
        parts = [(l, token_labels[..., i].reshape(-1), True) for i, l in
                 enumerate(self.token(x).flatten(0, 1).split(TOKEN_CLASSES, -1))]
        parts += [(l, frame_labels[:, i], False) for i, l in enumerate(self.frame(x.mean(1)).split(FRAME_CLASSES, -1))]
        loss = 0.0
        for i, (logits, wanted, sparse) in enumerate(parts):
            weight = (wanted >= 0).float()
            if sparse:
                weight = torch.where(wanted == 0, 0.1, weight)
            each = F.cross_entropy(logits, wanted, reduction="none", ignore_index=IGNORED)
            loss = loss + (each * weight).sum() / weight.sum().clamp(min=1)
            if score is not None:
                asked = wanted > 0 if sparse else wanted >= 0
                right = (logits.argmax(-1) == wanted) & asked
                score[i] += torch.stack([right.sum(), asked.sum()]).float()
        return loss
