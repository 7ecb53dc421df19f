"""Prompts as token ids and three-axis positions, exactly as transformers 4.57 makes them for Qwen2.5-VL.

Text advances all three axes together. A video or picture that starts at position p gives token (frame
pair i, row r, column c) the position (p + floor(i * interval), p + r, p + c), where interval is
second_per_grid_ts * tokens_per_second (0 for pictures); what follows starts at the largest position + 1.
"""
import dataclasses

import numpy as np

from training.world import chat

TOKENS_PER_SECOND = 2


@dataclasses.dataclass
class Visual:
    """A video part (pairs of frames) or a picture (one pair, interval 0) of rows x columns merged tokens."""
    pairs: int
    rows: int
    columns: int
    interval: float
    is_image: bool = False
    shift: int = 0  # training only: moves the time axis away from the others


def interval_of(fps):
    """Position steps between frame pairs at `fps` sampled frames a second."""
    return 2 / fps * TOKENS_PER_SECOND


class Prefix:
    """What all questions about a video share: system prompt, "user", and the content parts so far."""

    def __init__(self, text):
        self.text = text
        self.ids, self.positions, self.next = [], [], 0
        self.visual_start = None
        self.say([text.start] + text.encode("system\n" + chat.SYSTEM) + [text.end] + text.encode("\n")
                 + [text.start] + text.encode("user\n"))
        self.head = len(self.ids)  # rows that a question without any video sees

    def say(self, ids):
        self.ids.extend(ids)
        p = np.arange(self.next, self.next + len(ids))
        self.positions.append(np.stack([p, p, p]))
        self.next += len(ids)

    def show(self, visual, opened=True):
        """Adds vision_start and the tokens of a visual; the caller says vision_end, or the question does."""
        if opened:
            self.say([self.text.vision_start])
        count = visual.rows * visual.columns
        time = np.floor(np.arange(visual.pairs) * visual.interval).astype(np.int64) + visual.shift
        place = np.arange(count)
        self.visual_start, self.visual = len(self.ids), visual
        self.visual_base = self.next
        self.ids.extend([self.text.image_pad if visual.is_image else self.text.video_pad] * (visual.pairs * count))
        self.positions.append(self.next + np.stack([np.repeat(time, count), np.tile(place // visual.columns, visual.pairs),
                                                    np.tile(place % visual.columns, visual.pairs)]))
        self.next = self.after(visual.pairs)

    def after(self, pairs):
        """The position that follows the last visual when only its first `pairs` pairs are seen."""
        v = self.visual
        last = int((pairs - 1) * v.interval) + v.shift
        return self.visual_base + max(last, v.rows - 1, v.columns - 1) + 1

    def arrays(self):
        return np.array(self.ids, np.int64), np.concatenate(self.positions, 1)


def question(text, words):
    """Tokens from the question's first word to where the answer starts."""
    return text.encode(words) + [text.end] + text.encode("\n") + [text.start] + text.encode("assistant\n")


def next_question(text, words):
    """The same for a later turn: what follows the end token of the previous answer."""
    return text.encode("\n") + [text.start] + text.encode("user\n") + question(text, words)
