"""Bakes the world's pictures and glyphs into two small PNG files, once.

    python -m training.world.bake_atlas [EMOJI_FONT.ttf] [DEJAVU_DIRECTORY]

Machines that train may have no fonts, so the result is committed: `pictures.png` (Noto Color Emoji,
see atlas.LICENSE) and `glyphs.png` (letters and digits in four DejaVu faces), one cell per picture.
"""
import pathlib
import sys

from PIL import Image, ImageDraw, ImageFont

from training.world import names

CELL = 40
COLUMNS = 16
HERE = pathlib.Path(__file__).parent
FACES = ["DejaVuSans-Bold.ttf", "DejaVuSerif-Bold.ttf", "DejaVuSansMono-Bold.ttf", "DejaVuSans.ttf"]


def fitted(image, size):
    """The visible part of an RGBA picture, scaled to touch a square of `size` pixels."""
    image = image.crop(image.getchannel("A").point(lambda a: 255 * (a > 8)).getbbox())
    side = max(image.size)
    square = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    # premultiplied while scaling, so that transparent black does not darken the edges
    return square.convert("RGBa").resize((size, size), Image.LANCZOS).convert("RGBA")


def sheet(cells, mode):
    rows = -(-len(cells) // COLUMNS)
    image = Image.new(mode, (COLUMNS * CELL, rows * CELL))
    for i, cell in enumerate(cells):
        image.paste(cell, (i % COLUMNS * CELL, i // COLUMNS * CELL))
    return image


def bake(emoji_font, dejavu):
    font = ImageFont.truetype(emoji_font, 109)  # the only size of its bitmaps
    pictures = []
    for name, code in zip(names.PICTURES, names.CODE_POINTS):
        canvas = Image.new("RGBA", (180, 180), (0, 0, 0, 0))
        ImageDraw.Draw(canvas).text((16, 16), chr(code), font=font, embedded_color=True)
        if canvas.getbbox() is None:
            raise SystemExit(f"{emoji_font} has no picture for {name} (U+{code:X})")
        pictures.append(fitted(canvas, CELL))
    glyphs = []
    for face in FACES:
        font = ImageFont.truetype(str(pathlib.Path(dejavu) / face), 120)
        for glyph in names.GLYPHS:
            canvas = Image.new("RGBA", (240, 240), (0, 0, 0, 0))
            ImageDraw.Draw(canvas).text((60, 40), glyph, font=font, fill=(255, 255, 255, 255))
            cell = Image.new("L", (CELL, CELL))
            cell.paste(fitted(canvas, CELL - 8).getchannel("A"), (4, 4))
            glyphs.append(cell)
    return sheet(pictures, "RGBA"), sheet(glyphs, "L")


def main():
    arguments = sys.argv[1:] + ["/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf",
                                "/usr/share/fonts/truetype/dejavu"][len(sys.argv) - 1:]
    pictures, glyphs = bake(*arguments)
    pictures.save(HERE / "pictures.png", optimize=True)
    glyphs.save(HERE / "glyphs.png", optimize=True)


if __name__ == "__main__":
    main()
