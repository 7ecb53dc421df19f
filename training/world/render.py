"""Draws worlds: rows of parameters in, frames out, in batches, on the GPU or the CPU, with PyTorch.

Edges are soft, as in a video that was scaled down. `worn` adds what cameras, scalers and codecs do
(blur or sharpening, half-resolution colour, coarse 4x4 cosine coefficients, noise), so that a model
trained on drawn frames also reads them from H.264 files at other sizes.
"""
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from training.world import names, scene
from training.world.bake_atlas import CELL, COLUMNS, FACES

HERE = pathlib.Path(__file__).parent
MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)


def _cells(image, count):
    rows = image.shape[0] // CELL
    cells = image.reshape(rows, CELL, COLUMNS, CELL, -1).transpose(0, 2, 1, 3, 4)
    return cells.reshape(rows * COLUMNS, CELL, CELL, -1)[:count]


def atlas():
    """float32 [pictures + faces * glyphs, CELL, CELL, 4]: premultiplied RGB and coverage; glyphs are coverage only."""
    pictures = np.asarray(Image.open(HERE / "pictures.png").convert("RGBA"), np.float32) / 255
    pictures = _cells(pictures, len(names.PICTURES)).copy()
    pictures[..., :3] *= pictures[..., 3:]
    glyphs = np.asarray(Image.open(HERE / "glyphs.png").convert("L"), np.float32)[..., None] / 255
    glyphs = np.repeat(_cells(glyphs, len(FACES) * len(names.GLYPHS)), 4, -1)
    return np.concatenate([pictures, glyphs])


class Renderer:
    def __init__(self, device="cpu"):
        self.device = torch.device(device)
        # a border of nothing around every cell, so that sampling needs no edge cases
        table = torch.from_numpy(atlas()).permute(0, 3, 1, 2)
        self.table = F.pad(table, (1, 1, 1, 1)).permute(0, 2, 3, 1).reshape(-1, 4).contiguous().to(self.device)
        cosine = torch.tensor([[np.cos(np.pi * (2 * x + 1) * k / 8) for x in range(4)] for k in range(4)], dtype=torch.float32)
        self.cosine = (cosine / cosine.norm(dim=1, keepdim=True)).to(self.device)
        self.fast = None
        if self.device.type == "cuda":
            from training.world import render_triton
            self.fast = render_triton

    def draw(self, rows, height, width):
        """rows [F, COLUMNS] -> float32 [F, 3, height, width] in 0..1"""
        if self.fast:
            return self.fast.draw(rows, self.table, height, width)
        some = max(1, 16 * 112 * 112 // (height * width))  # frames that fit a cache
        return torch.cat([draw_windows(part, height, width, self.table) for part in rows.split(some)])

    def model_patches(self, rows, height, width, worn, seed):
        """[F/2, patches, 1176]: the first `worn` frames as worn as their rows say, the rest with gain and noise only."""
        if not self.fast:
            return patches(self.worn(self.draw(rows, height, width), rows))
        parts = []
        if worn:
            parts.append(patches(self.worn(self.draw(rows[:worn], height, width), rows[:worn])).bfloat16())
        if worn < len(rows):
            parts.append(self.fast.draw_patches(rows[worn:], self.table, height, width, seed))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def worn(self, frames, rows):
        """What blur, colour subsampling, quantisation and noise leave of `frames`; strengths from `rows`."""
        return _worn(frames, rows, self.cosine)


def _sample(table, cell, u, v):
    """Bilinear lookup: cell [F,1,1], u, v [F,H,W] in cell pixels (pixel centres at .5) -> 4 tensors [F,H,W]."""
    side = CELL + 2
    u, v = (u + 0.5).clamp(0, side - 1.001), (v + 0.5).clamp(0, side - 1.001)
    iu, iv = u.floor(), v.floor()
    fu, fv = (u - iu).unsqueeze(-1), (v - iv).unsqueeze(-1)
    base = (cell * side * side + iv * side + iu).long()
    top = table[base] * (1 - fu) + table[base + 1] * fu
    low = table[base + side] * (1 - fu) + table[base + side + 1] * fu
    return (top * (1 - fv) + low * fv).unbind(-1)


def _background(rows, x, y, unit):
    """[F, H, W] red, green, blue; x, y in world units, unit: how many of them one pixel is wide."""
    def column(i):
        return rows[:, i].view(-1, 1, 1)

    a = column(7) * x + column(8) * y + column(9)
    b = -column(8) * x + column(7) * y + column(10)
    sin_a, sin_b = torch.sin(a), torch.sin(b)
    # rings: around a point that drifts with the phases
    wave = torch.sqrt(column(7) ** 2 + column(8) ** 2)
    away = torch.sqrt((x - 56 - 30 * torch.sin(column(9))) ** 2 + (y - 56 - 30 * torch.cos(column(10))) ** 2)
    pattern = column(6)
    field = torch.where(pattern < 0.5, sin_a, torch.where(
        pattern < 1.5, sin_a * sin_b * 1.5, torch.where(
            pattern < 2.5, sin_a * sin_b - 0.45, torch.where(
                pattern < 3.5, torch.sin(a + 1.8 * torch.sin(0.8 * b)), torch.sin(away * wave - column(9))))))
    mix = (0.5 + field * (3.0 / unit)).clamp(0, 1)
    return [column(i) + mix * (column(3 + i) - column(i)) for i in range(3)]


def _sprite(rows, o, x, y, table, unit):
    """Coverage and premultiplied colours of the sprite whose columns start at `o`."""
    def column(i):
        return rows[:, o + i].view(-1, 1, 1)

    dx, dy, half, kind = x - column(0), y - column(1), column(2).clamp(min=1.0), column(3)
    ax, ay = dx.abs(), dy.abs()
    radius = torch.sqrt(dx * dx + dy * dy)
    # signed distances, positive inside, in world units
    circle = half - radius
    square = 0.85 * half - torch.maximum(ax, ay)
    triangle = torch.minimum(0.8 * half - dy, (0.6 * (dy + half) - ax) * 0.857)
    diamond = (1.2 * half - ax - ay) * 0.707
    cross = torch.maximum(torch.minimum(0.35 * half - ax, half - ay), torch.minimum(0.35 * half - ay, half - ax))
    ring = torch.minimum(circle, radius - 0.57 * half)
    inside = torch.where(kind < 0.5, circle, torch.where(kind < 1.5, square, torch.where(
        kind < 2.5, triangle, torch.where(kind < 3.5, diamond, torch.where(kind < 4.5, cross, ring)))))
    shape = (0.5 + inside / unit).clamp(0, 1)
    is_picture = kind > scene.FIRST_PICTURE - 0.5
    scale = CELL / 2 / half
    picture = _sample(table, (kind - scene.FIRST_PICTURE).clamp(min=0), (dx + half) * scale, (dy + half) * scale)
    on = column(7)
    cover = torch.where(is_picture, picture[3], shape) * on
    return cover, [torch.where(is_picture, picture[i] * on, column(4 + i) * cover) for i in range(3)]


def _card(rows, o, x, y, table, unit):
    """Coverage and premultiplied colours of the card."""
    def column(i):
        return rows[:, o + i].view(-1, 1, 1)

    dx, dy, half, tall = x - column(0), y - column(1), column(2).clamp(min=1.0), column(3).clamp(min=1.0)
    content, on, border, ink, face = (column(7 + i) for i in range(5))
    edge = torch.minimum(half - dx.abs(), tall - dy.abs())
    plate = (0.5 + edge / unit).clamp(0, 1) * on
    inner = (0.5 + (edge - 2.4) / unit).clamp(0, 1)
    glyphs = len(names.GLYPHS)
    is_glyph = content < glyphs - 0.5
    cell = torch.where(is_glyph, len(names.PICTURES) + face * glyphs + content, content - glyphs).clamp(min=0)
    size = 0.80 * torch.minimum(half, tall)
    mark = _sample(table, cell, (dx + size) * (CELL / 2 / size), (dy + size) * (CELL / 2 / size))
    inks = []
    for i in range(3):
        paper = column(4 + i) * (1 - mark[3]) + torch.where(is_glyph, ink * mark[3], mark[i])
        inks.append((border * (1 - inner) + paper * inner) * plate)
    return plate, inks


# what is drawn over the background, in order: how, its first column, and the column that switches it on
LAYERS = [(_sprite, scene.SPRITE0 + 8 * s, scene.SPRITE0 + 8 * s + 7) for s in range(scene.SPRITES)] + [(_card, scene.CARD0, scene.CARD0 + 8)]


def draw_whole(rows, height, width, table):
    """The definition of a frame: every layer over the whole picture."""
    unit = scene.UNITS / min(height, width)
    y = (torch.arange(height, device=rows.device).view(1, height, 1) + 0.5) * unit
    x = (torch.arange(width, device=rows.device).view(1, 1, width) + 0.5) * unit
    rgb = _background(rows, x, y, unit)
    for layer, first, _ in LAYERS:
        cover, inks = layer(rows, first, x, y, table, unit)
        rgb = [c * (1 - cover) + ink for c, ink in zip(rgb, inks)]
    return torch.stack(rgb, 1).clamp(0, 1)


def draw_windows(rows, height, width, table):
    """The same frames, each layer computed only in a window around it: several times faster on a CPU."""
    unit = scene.UNITS / min(height, width)
    y = (torch.arange(height).view(1, height, 1) + 0.5) * unit
    x = (torch.arange(width).view(1, 1, width) + 0.5) * unit
    margin = math.ceil(60 / unit)  # windows may reach over the edge
    rows_wide, columns_wide = height + 2 * margin, width + 2 * margin
    canvas = torch.zeros(len(rows), 3, rows_wide, columns_wide)
    canvas[:, :, margin:margin + height, margin:margin + width] = torch.stack(_background(rows, x, y, unit), 1)
    flat, channel = canvas.view(len(rows), 3, -1), torch.arange(3).view(1, 3, 1)
    for layer, first, switch in LAYERS:
        some = (rows[:, switch] > 0.5).nonzero()[:, 0]
        if not len(some):
            continue
        r = rows[some]
        side = min(2 * margin, math.ceil(2 * (1.3 * float(r[:, first + 2].max()) + 2) / unit))
        left = ((r[:, first] / unit) - side / 2).floor().clamp(-margin, columns_wide - margin - side).long()
        top = ((r[:, first + 1] / unit) - side / 2).floor().clamp(-margin, rows_wide - margin - side).long()
        px, py = left.view(-1, 1, 1) + torch.arange(side).view(1, 1, side), top.view(-1, 1, 1) + torch.arange(side).view(1, side, 1)
        cover, inks = layer(r, first, (px + 0.5) * unit, (py + 0.5) * unit, table, unit)
        at = (some.view(-1, 1, 1), channel, ((py + margin) * columns_wide + px + margin).flatten(1).unsqueeze(1))
        flat[at] = flat[at] * (1 - cover.flatten(1).unsqueeze(1)) + torch.stack(inks, 1).flatten(2)
    return canvas[:, :, margin:margin + height, margin:margin + width].clamp(0, 1)


def _worn(frames, rows, cosine):
    n, _, height, width = frames.shape
    noise, gain, blur, step = (rows[:, scene.STYLE0 + i].view(-1, 1, 1, 1) for i in range(4))
    f = (frames * gain).clamp(0, 1)
    # three-tap blur (positive) or sharpening (negative) in both directions
    p = F.pad(f, (1, 1, 0, 0), mode="replicate")
    f = f + blur * (p[..., 2:] + p[..., :-2] - 2 * f)
    p = F.pad(f, (0, 0, 1, 1), mode="replicate")
    f = f + blur * (p[..., 2:, :] + p[..., :-2, :] - 2 * f)
    r, g, b = f.unbind(1)
    light = 0.299 * r + 0.587 * g + 0.114 * b
    planes = torch.stack([light, (b - light) * 0.564, (r - light) * 0.713], 1)
    chroma = planes[:, 1:].reshape(n, 2, height // 2, 2, width // 2, 2).mean((3, 5))
    chroma = chroma.repeat_interleave(2, 2).repeat_interleave(2, 3)
    planes = torch.cat([planes[:, :1], torch.where(step > 0, chroma, planes[:, 1:])], 1)
    blocks = planes.reshape(n, 3, height // 4, 4, width // 4, 4)
    coded = torch.einsum("ui,nchiwj,vj->nchuwv", cosine, blocks, cosine)
    size = step.view(-1, 1, 1, 1, 1, 1).clamp(min=1e-3)
    coded = torch.round(coded / size) * size
    coded = torch.einsum("ui,nchuwv,vj->nchiwj", cosine, coded, cosine).reshape(n, 3, height, width)
    light, cb, cr = torch.where(step > 0, coded, planes).unbind(1)
    red, blue = light + cr / 0.713, light + cb / 0.564
    green = (light - 0.299 * red - 0.114 * blue) / 0.587
    f = torch.stack([red, green, blue], 1)
    f = f + noise * 2 * (torch.rand_like(light) - 0.5).unsqueeze(1)
    return (f.clamp(0, 1) * 255).round() / 255


def patches(frames, mean=MEAN, deviation=DEVIATION):
    """[F, 3, H, W] in 0..1 -> Qwen2.5-VL patches [F/2, H/14 * W/14, 3*2*14*14], in merge order, normalised."""
    f, _, height, width = frames.shape
    m = torch.tensor(mean, device=frames.device).view(1, 3, 1, 1)
    d = torch.tensor(deviation, device=frames.device).view(1, 3, 1, 1)
    v = ((frames - m) / d).reshape(f // 2, 2, 3, height // 28, 2, 14, width // 28, 2, 14)
    # pair, (block row, block column, row in block, column in block), (channel, time, y, x)
    v = v.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return v.reshape(f // 2, height * width // 196, 1176)
