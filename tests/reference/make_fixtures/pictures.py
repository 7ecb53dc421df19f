"""Small photographs of every kind and what Pillow makes of them: chroma, orientation."""

from PIL import Image, ImageOps

from .paths import FIXTURES
from .pixels import frame

FOLDER = FIXTURES / "pictures"


def _smooth(width: int, height: int, seed: int) -> Image.Image:
    """Procedural pixels with strong colours at edges, where chroma filters differ most."""
    pixels = frame(seed, height, width)
    pixels[height // 3 : height // 2, width // 4 :] = (230, 20, 30)
    pixels[:, width // 2 : width // 2 + 3] = (10, 40, 220)
    return Image.fromarray(pixels)


def _store(name: str, write) -> None:
    path = FOLDER / name
    write(path)
    shown = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    shown.info.pop("transparency", None)  # else it is written again
    shown.save(FOLDER / (name.replace(".", "-") + ".expected.png"))


def make_alpha() -> None:
    """Transparent pictures; converting them to RGB, as Hugging Face's loaders do, drops the alpha and nothing else."""
    image = _smooth(61, 47, seed=6)
    alpha = Image.fromarray(frame(7, 47, 61)[:, :, 0])
    with_alpha = image.copy()
    with_alpha.putalpha(alpha)
    gray = image.convert("L")
    gray.putalpha(alpha)
    palette = image.quantize(32)
    for name, picture, options in [
        ("alpha-rgba.png", with_alpha, {}),
        ("alpha-gray.png", gray, {}),
        ("alpha-palette.png", palette, {"transparency": bytes(range(0, 256, 8))}),
        ("alpha-colour.png", image, {"transparency": image.getpixel((5, 5))}),
        ("alpha-lossless.webp", with_alpha, {"lossless": True, "exact": True}),
        ("alpha-lossy.webp", with_alpha, {"quality": 90, "exact": True}),
        ("alpha.tiff", with_alpha, {}),
    ]:
        _store(name, lambda path: picture.save(path, **options))


def make() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, subsampling, size in [
        ("chroma420.jpg", "4:2:0", (61, 47)),
        ("chroma420-even.jpg", "4:2:0", (64, 48)),
        ("chroma422.jpg", "4:2:2", (61, 47)),
        ("chroma444.jpg", "4:4:4", (61, 47)),
        ("narrow420.jpg", "4:2:0", (3, 21)),
    ]:
        image = _smooth(*size, seed=3)
        _store(name, lambda path: image.save(path, quality=95, subsampling=subsampling))
    gray = _smooth(61, 47, seed=4).convert("L")
    _store("gray.jpg", lambda path: gray.save(path, quality=90))
    image = _smooth(61, 47, seed=5)
    _store("lossy.webp", lambda path: image.save(path, quality=90))
    _store("photo.avif", lambda path: image.save(path, quality=90, subsampling="4:4:4"))
    for number in range(2, 9):
        exif = Image.Exif()
        exif[274] = number
        for extension, options in {"jpg": {"quality": 95}, "png": {}, "webp": {"lossless": True}, "tiff": {}}.items():
            if extension != "jpg" and number not in (6, 7):
                continue
            _store(f"exif{number}.{extension}", lambda path: image.save(path, exif=exif, **options))
    make_alpha()
    frames = [_smooth(32, 24, seed=seed) for seed in range(3)]
    frames[0].save(FOLDER / "animated.webp", save_all=True, append_images=frames[1:], duration=100)
