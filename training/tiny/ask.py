"""Asks the model about a video or picture with the training code, to compare other engines with.

    python -m training.tiny.ask VIDEO "What moves over the blue stripes?" [more questions] [--model DIR] [--fps 2]
"""
import argparse
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

from training.tiny import model as models, prompt
from training.tiny.tokenizer import MODEL, Text
from training.world import render, video_file

SMALLEST, LARGEST = 16 * 28 * 28, 64 * 28 * 28


def fitted(height, width, smallest=SMALLEST, largest=LARGEST):
    """Qwen2-VL's rule: multiples of 28 near the given size, with an area within limits."""
    h, w = max(28, round(height / 28) * 28), max(28, round(width / 28) * 28)
    if h * w > largest:
        scale = math.sqrt(height * width / largest)
        h, w = max(28, math.floor(height / scale / 28) * 28), max(28, math.floor(width / scale / 28) * 28)
    elif h * w < smallest:
        scale = math.sqrt(smallest / (height * width))
        h, w = math.ceil(height * scale / 28) * 28, math.ceil(width * scale / 28) * 28
    return h, w


def frames_of(pixels):
    """uint8 [F, H, W, 3] -> float [F, 3, h, w] in 0..1 at the size the model wants, bicubic, last frame repeated to pairs"""
    h, w = fitted(*pixels.shape[1:3])
    f = torch.from_numpy(np.array(pixels)).permute(0, 3, 1, 2).float()
    if (h, w) != tuple(f.shape[2:]):
        f = F.interpolate(f, (h, w), mode="bicubic", antialias=True, align_corners=False).clamp(0, 255).round()
    return torch.cat([f, f[-1:]])[:len(f) + len(f) % 2] / 255


class Session:
    """One video (or several parts with text between) and questions about it."""

    def __init__(self, model, text, dtype=torch.float32):
        self.model, self.text, self.dtype = model, text, dtype
        self.prefix, self.visual, self.rows = prompt.Prefix(text), [], []
        self.open = False

    @torch.no_grad()
    def show(self, pixels, fps, is_image=False):
        self._close()
        frames = frames_of(pixels)
        grid = frames.shape[2] // 28, frames.shape[3] // 28
        tokens = [self.model.look(render.patches(part).to(self.dtype), *grid) for part in frames.split(256)]
        self.visual.append(torch.cat(tokens).flatten(0, 1))
        self.prefix.show(prompt.Visual(len(frames) // 2, *grid, 0 if is_image else prompt.interval_of(fps), is_image))
        self.rows.append(np.arange(self.prefix.visual_start, len(self.prefix.ids)))
        self.open = True

    def say(self, words):
        self._close()
        self.prefix.say(self.text.encode(words))

    def _close(self):
        if self.open:
            self.prefix.say([self.text.vision_end])
            self.open = False

    @torch.no_grad()
    def prefill(self):
        self._close()
        ids, positions = self.prefix.arrays()
        x = self.model.embed(torch.from_numpy(ids)).to(self.dtype)
        if self.visual:
            x[torch.from_numpy(np.concatenate(self.rows))] = torch.cat(self.visual)
        self.cache = self.model.prefill(x, torch.from_numpy(positions))[1]

    def ask(self, words, limit=256):
        given = self.model.answer(self.cache, prompt.question(self.text, words), self.prefix.next, self.text.end, limit)
        return self.text.decode(given)


def open_model(directory=MODEL):
    return models.Model(models.read_config(directory)).load(directory).eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("video")
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--model", default=str(MODEL))
    a = parser.parse_args()
    session = Session(open_model(a.model), Text(a.model))
    is_image = pathlib.Path(a.video).suffix.lower() in (".png", ".jpg", ".jpeg")
    if is_image:
        from PIL import Image
        pixels, fps = np.asarray(Image.open(a.video).convert("RGB"))[None], 1.0
    else:
        pixels, fps = video_file.read(a.video)
    session.show(pixels, fps, is_image)
    session.prefill()
    for words in a.questions:
        print(words, "->", session.ask(words))


if __name__ == "__main__":
    main()
