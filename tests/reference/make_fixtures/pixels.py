"""Procedural pictures: the integer formula of README.md, the same in C++."""

import numpy as np


def frame(seed: int, height: int, width: int, t: int = 0) -> np.ndarray:
    """u8 [height, width, 3]."""
    with np.errstate(over="ignore"):
        y = np.arange(height, dtype=np.uint32)[:, None, None]
        x = np.arange(width, dtype=np.uint32)[None, :, None]
        c = np.arange(3, dtype=np.uint32)[None, None, :]
        s, f = np.uint32(seed), np.uint32(t)
        wave = (x * (3 + s % 5) + y * (2 + s % 7) + f * 37 + c * 85 + s * 101) % 512
        ramp = np.where(wave < 256, wave, 511 - wave)
        mix = (
            (x * np.uint32(73856093))
            ^ (y * np.uint32(19349663))
            ^ ((f + 1) * np.uint32(83492791))
            ^ ((c + 1) * np.uint32(2654435761))
            ^ ((s + 1) * np.uint32(40503))
        )
        mix = mix ^ (mix >> 13)
        mix = mix * np.uint32(1540483477)
        mix = mix ^ (mix >> 15)
        return (ramp * 3 // 4 + mix % 64).astype(np.uint8)


def clip(seed: int, frames: int, height: int, width: int) -> np.ndarray:
    """u8 [frames, height, width, 3]."""
    return np.stack([frame(seed, height, width, t) for t in range(frames)])
