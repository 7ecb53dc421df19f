"""The renderer as one Triton kernel: draws frames, or the model's patches directly, without intermediate planes.

The same pictures as render.py, which stays the definition; `render.Renderer` uses this on CUDA devices.
"""
import torch
import triton
import triton.language as tl

from training.world import names, scene
from training.world.bake_atlas import CELL

BLOCK = 1024
SIDE = tl.constexpr(CELL + 2)
HALF_CELL = tl.constexpr(CELL / 2)
COLUMNS = tl.constexpr(scene.COLUMNS)
SPRITES = tl.constexpr(scene.SPRITES)
SPRITE0 = tl.constexpr(scene.SPRITE0)
CARD0 = tl.constexpr(scene.CARD0)
STYLE0 = tl.constexpr(scene.STYLE0)
FIRST_PICTURE = tl.constexpr(scene.FIRST_PICTURE)
PICTURES = tl.constexpr(len(names.PICTURES))
GLYPHS = tl.constexpr(len(names.GLYPHS))


@triton.jit
def _unit_interval(v):
    return tl.minimum(tl.maximum(v, 0.0), 1.0)


@triton.jit
def _sample(table, cell, u, v):
    u = tl.minimum(tl.maximum(u + 0.5, 0.0), SIDE - 1.001)
    v = tl.minimum(tl.maximum(v + 0.5, 0.0), SIDE - 1.001)
    iu = u.to(tl.int32)
    iv = v.to(tl.int32)
    fu = u - iu
    fv = v - iv
    p = table + ((cell * SIDE + iv) * SIDE + iu) * 4
    w00 = (1 - fu) * (1 - fv)
    w01 = fu * (1 - fv)
    w10 = (1 - fu) * fv
    w11 = fu * fv
    low = SIDE * 4
    r = tl.load(p) * w00 + tl.load(p + 4) * w01 + tl.load(p + low) * w10 + tl.load(p + low + 4) * w11
    g = tl.load(p + 1) * w00 + tl.load(p + 5) * w01 + tl.load(p + low + 1) * w10 + tl.load(p + low + 5) * w11
    b = tl.load(p + 2) * w00 + tl.load(p + 6) * w01 + tl.load(p + low + 2) * w10 + tl.load(p + low + 6) * w11
    a = tl.load(p + 3) * w00 + tl.load(p + 7) * w01 + tl.load(p + low + 3) * w10 + tl.load(p + low + 7) * w11
    return r, g, b, a


@triton.jit
def _field(pattern, a, b, x, y, phase_a, phase_b, wave):
    field = tl.sin(a)
    if pattern > 3.5:
        dx = x - 56 - 30 * tl.sin(phase_a)
        dy = y - 56 - 30 * tl.cos(phase_b)
        field = tl.sin(tl.sqrt(dx * dx + dy * dy) * wave - phase_a)
    elif pattern > 2.5:
        field = tl.sin(a + 1.8 * tl.sin(0.8 * b))
    elif pattern > 1.5:
        field = field * tl.sin(b) - 0.45
    elif pattern > 0.5:
        field = field * tl.sin(b) * 1.5
    return field


@triton.jit
def _inside(kind, dx, dy, half):
    """Signed distance into a shape, in world units."""
    ax = tl.abs(dx)
    ay = tl.abs(dy)
    radius = tl.sqrt(dx * dx + dy * dy)
    inside = half - radius
    if kind > 4.5:
        inside = tl.minimum(inside, radius - 0.57 * half)
    elif kind > 3.5:
        inside = tl.maximum(tl.minimum(0.35 * half - ax, half - ay), tl.minimum(0.35 * half - ay, half - ax))
    elif kind > 2.5:
        inside = (1.2 * half - ax - ay) * 0.707
    elif kind > 1.5:
        inside = tl.minimum(0.8 * half - dy, (0.6 * (dy + half) - ax) * 0.857)
    elif kind > 0.5:
        inside = 0.85 * half - tl.maximum(ax, ay)
    return inside


@triton.jit(do_not_specialize=["seed", "height", "width"])
def _draw(rows, table, out, seed, height, width, unit, PATCHES: tl.constexpr, SIZE: tl.constexpr):
    frame = tl.program_id(0)
    first = tl.program_id(1) * SIZE
    pixel = first + tl.arange(0, SIZE)
    row = pixel // width
    column = pixel % width
    x = (column + 0.5) * unit
    y = (row + 0.5) * unit
    top = (first // width) * unit
    bottom = ((first + SIZE) // width + 1) * unit
    r = rows + frame * COLUMNS
    kx = tl.load(r + 7)
    ky = tl.load(r + 8)
    phase_a = tl.load(r + 9)
    phase_b = tl.load(r + 10)
    a = kx * x + ky * y + phase_a
    b = kx * y - ky * x + phase_b
    field = _field(tl.load(r + 6), a, b, x, y, phase_a, phase_b, tl.sqrt(kx * kx + ky * ky))
    mix = _unit_interval(0.5 + field * (3.0 / unit))
    red = tl.load(r) + mix * (tl.load(r + 3) - tl.load(r))
    green = tl.load(r + 1) + mix * (tl.load(r + 4) - tl.load(r + 1))
    blue = tl.load(r + 2) + mix * (tl.load(r + 5) - tl.load(r + 2))

    for s in tl.static_range(SPRITES):
        o = r + SPRITE0 + 8 * s
        cy = tl.load(o + 1)
        half = tl.maximum(tl.load(o + 2), 1.0)
        reach = 1.3 * half + 2
        if (tl.load(o + 7) > 0.5) & (cy + reach > top) & (cy - reach < bottom):
            dx = x - tl.load(o)
            dy = y - cy
            kind = tl.load(o + 3)
            if kind > FIRST_PICTURE - 0.5:
                scale = HALF_CELL / half
                pr, pg, pb, pa = _sample(table, (kind - FIRST_PICTURE + 0.5).to(tl.int32), (dx + half) * scale, (dy + half) * scale)
                red = red * (1 - pa) + pr
                green = green * (1 - pa) + pg
                blue = blue * (1 - pa) + pb
            else:
                cover = _unit_interval(0.5 + _inside(kind, dx, dy, half) / unit)
                red = red * (1 - cover) + tl.load(o + 4) * cover
                green = green * (1 - cover) + tl.load(o + 5) * cover
                blue = blue * (1 - cover) + tl.load(o + 6) * cover

    o = r + CARD0
    cy = tl.load(o + 1)
    tall = tl.maximum(tl.load(o + 3), 1.0)
    if (tl.load(o + 8) > 0.5) & (cy + tall + 2 > top) & (cy - tall - 2 < bottom):
        dx = x - tl.load(o)
        dy = y - cy
        half = tl.maximum(tl.load(o + 2), 1.0)
        edge = tl.minimum(half - tl.abs(dx), tall - tl.abs(dy))
        plate = _unit_interval(0.5 + edge / unit)
        inner = _unit_interval(0.5 + (edge - 2.4) / unit)
        content = tl.load(o + 7)
        ink = tl.load(o + 10)
        size = 0.80 * tl.minimum(half, tall)
        is_glyph = content < GLYPHS - 0.5
        cell = tl.where(is_glyph, PICTURES + tl.load(o + 11) * GLYPHS + content, content - GLYPHS)
        scale = HALF_CELL / size
        pr, pg, pb, pa = _sample(table, (cell + 0.5).to(tl.int32), (dx + size) * scale, (dy + size) * scale)
        pr = tl.where(is_glyph, ink * pa, pr)
        pg = tl.where(is_glyph, ink * pa, pg)
        pb = tl.where(is_glyph, ink * pa, pb)
        border = tl.load(o + 9) * (1 - inner)
        red = red * (1 - plate) + (border + (tl.load(o + 4) * (1 - pa) + pr) * inner) * plate
        green = green * (1 - plate) + (border + (tl.load(o + 5) * (1 - pa) + pg) * inner) * plate
        blue = blue * (1 - plate) + (border + (tl.load(o + 6) * (1 - pa) + pb) * inner) * plate

    red = _unit_interval(red)
    green = _unit_interval(green)
    blue = _unit_interval(blue)
    inside = pixel < height * width
    if PATCHES:
        noise = tl.load(r + STYLE0)
        gain = tl.load(r + STYLE0 + 1)
        grain = (tl.rand(seed, frame * height * width + pixel) - 0.5) * 2 * noise
        red = tl.floor(_unit_interval(red * gain + grain) * 255 + 0.5) / 255
        green = tl.floor(_unit_interval(green * gain + grain) * 255 + 0.5) / 255
        blue = tl.floor(_unit_interval(blue * gain + grain) * 255 + 0.5) / 255
        block = (row // 28) * (width // 28) + column // 28
        patch = (block * 2 + (row % 28) // 14) * 2 + (column % 28) // 14
        p = ((frame // 2) * (height * width // 196) + patch) * 1176 + (frame % 2) * 196 + (row % 14) * 14 + column % 14
        tl.store(out + p, ((red - 0.48145466) / 0.26862954).to(tl.bfloat16), mask=inside)
        tl.store(out + p + 392, ((green - 0.4578275) / 0.26130258).to(tl.bfloat16), mask=inside)
        tl.store(out + p + 784, ((blue - 0.40821073) / 0.27577711).to(tl.bfloat16), mask=inside)
    else:
        p = frame * 3 * height * width + pixel
        tl.store(out + p, red, mask=inside)
        tl.store(out + p + height * width, green, mask=inside)
        tl.store(out + p + 2 * height * width, blue, mask=inside)


def _launch(rows, table, out, height, width, as_patches, seed=0):
    blocks = -(-height * width // BLOCK)
    _draw[(rows.shape[0], blocks)](rows.contiguous(), table, out, seed, height, width, scene.UNITS / min(height, width),
                                   PATCHES=as_patches, SIZE=BLOCK)
    return out


def draw(rows, table, height, width):
    """float32 [F, 3, height, width] in 0..1"""
    return _launch(rows, table, torch.empty(rows.shape[0], 3, height, width, device=rows.device), height, width, False)


def draw_patches(rows, table, height, width, seed):
    """bfloat16 [F/2, patches, 1176] with gain and noise, as 8-bit pixels normalised for the model"""
    out = torch.empty(rows.shape[0] // 2, height * width // 196, 1176, device=rows.device, dtype=torch.bfloat16)
    return _launch(rows, table, out, height, width, True, seed)
