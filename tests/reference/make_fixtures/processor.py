"""Tables of the size, tiling and sampling rules, and checksums of pictures too big to store."""

import hashlib
import logging
import math
import random

import numpy as np
import torch
from PIL import Image
from qwen_vl_utils import vision_process
from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
from transformers.models.llava_onevision.image_processing_llava_onevision import LlavaOnevisionImageProcessor
from transformers.models.llava_onevision.image_processing_llava_onevision_fast import LlavaOnevisionImageProcessorFast
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.models.qwen2_vl.image_processing_qwen2_vl_fast import Qwen2VLImageProcessorFast
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_vl import video_processing_qwen3_vl
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.video_utils import VideoMetadata

from . import pixels
from .family_qwen2_5_vl import to_patches
from .paths import FIXTURES, write_json

FOLDER = FIXTURES / "processor"
FACTOR = 28


def attempt(function, *arguments):
    try:
        return list(function(*arguments))
    except ValueError:
        return None


def make_smart_resize() -> None:
    """`processor`: the HF image and video processors; `utils`: qwen-vl-utils, which fetches images and frames."""
    rng = random.Random(3)
    limits = [(3136, 12845056), (128 * 784, 768 * 784), (4 * 784, 24 * 784), (3136, 602112)]
    sizes = [(1, 1), (1, 200), (1, 201), (13, 14), (14, 14), (27, 28), (42, 42), (41, 43), (28, 5600), (10, 1900), (70, 98),
             (480, 854), (1080, 1920), (2160, 3840), (1920, 1080), (20000, 20000), (100, 20000), (360, 640), (112, 112)]
    sizes += [(rng.randint(1, 400), rng.randint(1, 400)) for _ in range(60)]
    sizes += [(rng.randint(100, 4000), rng.randint(100, 4000)) for _ in range(50)]
    rows = []
    for height, width in sizes:
        for low, high in limits:
            rows.append(
                {
                    "size": [height, width],
                    "limits": [low, high],
                    "processor": attempt(smart_resize, height, width, FACTOR, low, high),
                    "utils": attempt(vision_process.smart_resize, height, width, FACTOR, low, high),
                }
            )
    write_json(FOLDER / "smart_resize.json", {"factor": FACTOR, "cases": rows}, indent=None)


def make_qwen_sampling() -> None:
    """qwen-vl-utils: how many frames, which ones, and the size each frame gets under the pixel budget."""
    logging.disable(logging.WARNING)
    rng = random.Random(4)
    options = [{}, {"fps": 1.0}, {"fps": 0.5}, {"fps": 4.0}, {"nframes": 8}, {"nframes": 7}, {"nframes": 64},
               {"min_frames": 8, "max_frames": 32}, {"fps": 1.0, "max_frames": 100}]
    videos = [(1, 25.0), (2, 25.0), (3, 25.0), (4, 30.0), (5, 30.0), (9, 24.0), (192, 24.0), (250, 25.0), (300, 29.97),
              (901, 30.0), (1390, 10.0), (10000, 23.976), (108000, 30.0), (216000, 60.0), (7, 1.0), (100, 0.5)]
    videos += [(rng.randint(1, 5000), rng.choice([10.0, 12.5, 15.0, 23.976, 24.0, 25.0, 29.97, 50.0, 59.94])) for _ in range(20)]
    rows = []
    for total, fps in videos:
        for chosen in options:
            try:
                count = vision_process.smart_nframes(dict(chosen), total_frames=total, video_fps=fps)
            except ValueError:
                rows.append({"total": total, "fps": fps, "options": chosen, "indices": None})
                continue
            indices = torch.linspace(0, total - 1, count).round().long().tolist()
            row = {"total": total, "fps": fps, "options": chosen, "count": count, "sample_fps": count / max(total, 1e-6) * fps}
            # Long lists as first and last entries and a sum.
            if count <= 40:
                row["indices"] = indices
            else:
                row.update(indices=indices[:12] + indices[-12:], index_sum=sum(indices))
            rows.append(row)
    budget = []
    for count in (2, 4, 8, 32, 64, 200, 420, 768):
        for height, width in ((360, 640), (1080, 1920), (480, 854), (100, 3000), (64, 64), (2160, 3840)):
            least = vision_process.VIDEO_MIN_TOKEN_NUM * FACTOR**2
            total = int(vision_process.MODEL_SEQ_LEN * FACTOR**2 * 0.9)
            most = max(min(vision_process.VIDEO_MAX_TOKEN_NUM * FACTOR**2, total / count * vision_process.FRAME_FACTOR), int(least * 1.05))
            budget.append(
                {"frames": count, "size": [height, width], "max_pixels": most,
                 "resized": list(vision_process.smart_resize(height, width, FACTOR, min_pixels=least, max_pixels=most))}
            )
    hf = []
    processor = Qwen2VLVideoProcessor()
    for total, fps in videos:
        metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps, video_backend="opencv")
        for wanted in (2.0, 1.0):
            try:
                hf.append({"total": total, "fps": fps, "wanted": wanted,
                           "indices": processor.sample_frames(metadata, fps=wanted).tolist()[:64]})
            except (ValueError, ZeroDivisionError, RuntimeError):
                hf.append({"total": total, "fps": fps, "wanted": wanted, "indices": None})
    write_json(FOLDER / "qwen_sampling.json", {"utils": rows, "budget": budget, "transformers": hf}, indent=None)


def make_qwen3_vl() -> None:
    """The published video processor: sizes under the budget of a whole video, frames, and their times as text."""
    rng = random.Random(9)
    sizes = [(32, 32), (31, 200), (48, 80), (360, 640), (1080, 1920), (2160, 3840), (1920, 1080), (100, 20000), (33, 6700)]
    sizes += [(rng.randint(32, 2500), rng.randint(32, 2500)) for _ in range(40)]
    resized = []
    for height, width in sizes:
        for low, high in [(4096, 25165824), (4096, 65536), (131072, 786432)]:
            frames = rng.choice([2, 3, 4, 5, 7, 16, 31, 240, 767, 768])
            resized.append(
                {"size": [height, width], "frames": frames, "limits": [low, high],
                 "result": attempt(video_processing_qwen3_vl.smart_resize, frames, height, width, 2, 32, low, high)}
            )
    processor = video_processing_qwen3_vl.Qwen3VLVideoProcessor()
    sampled = []
    for _ in range(120):
        total = rng.choice([1, 2, 3, 4, 5, 9, 24, 25, 50, 77, 101, 300, 1001, 7200, 20001])
        fps = rng.choice([10.0, 15.0, 24.0, 25.0, 29.97002997002997, 30.0, 60.0])
        wish = rng.choice([{}, {}, {"fps": rng.choice([0.5, 1, 4])}, {"num_frames": rng.randint(1, total)}])
        if total / fps * wish.get("fps", 2) > 768:  # kinora does not cut a rate that was asked for
            wish = {}
        metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps, video_backend="opencv")
        indices = processor.sample_frames(metadata, **wish).tolist()
        times = Qwen3VLProcessor._calculate_timestamps(None, list(indices), fps, 2)
        sampled.append(
            {"total": total, "fps": fps, "wish": wish, "indices": indices[:12] + indices[12:][-12:], "count": len(indices),
             "sum": sum(indices), "times": [f"<{t:.1f} seconds>" for t in times[:12]]}
        )
    write_json(FOLDER / "qwen3_vl.json", {"resized": resized, "sampled": sampled}, indent=None)


def make_llava_sampling() -> None:
    """LLaVA-OneVision: n frames uniformly; LLaVA-Video: 1 fps, and n uniformly where that is more than n."""
    rng = random.Random(5)
    rows = []
    for _ in range(60):
        total = rng.choice([1, 2, 7, 31, 32, 33, 64, 65, rng.randint(1, 5000)])
        fps = rng.choice([10.0, 23.976, 24.0, 25.0, 29.97, 30.0, 59.94])
        for most in (8, 32, 64):
            uniform = np.linspace(0, total - 1, most, dtype=int).tolist()
            step = max(1, round(fps))
            by_second = list(range(0, total, step))
            rows.append(
                {"total": total, "fps": fps, "max_frames": most, "uniform": uniform,
                 "video": uniform if len(by_second) > most else by_second}
            )
    write_json(FOLDER / "llava_sampling.json", rows, indent=None)


def make_llava_anyres() -> None:
    """Best resolution, size inside it, tiles and tokens of one image, for the published 384-pixel pinpoints."""
    rng = random.Random(6)
    pinpoints = LlavaOnevisionImageProcessor().image_grid_pinpoints
    counter = LlavaOnevisionProcessor.__new__(LlavaOnevisionProcessor)
    counter.num_image_tokens, counter.vision_aspect_ratio = 729, "anyres_max_9"
    counter.image_processor = LlavaOnevisionImageProcessor()
    sizes = [(1, 1), (384, 384), (385, 384), (384, 385), (1080, 1920), (1920, 1080), (2304, 2304), (4000, 3000), (100, 2000),
             (2000, 100), (768, 768), (767, 769), (50, 50), (13, 4000), (3001, 17)]
    sizes += [(rng.randint(1, 3000), rng.randint(1, 3000)) for _ in range(150)]
    rows = []
    for height, width in sizes:
        best = select_best_resolution([height, width], pinpoints)
        inside = get_patch_output_size(np.zeros((height, width, 1), np.uint8), best, "channels_last")
        rows.append(
            {
                "size": [height, width],
                "best": list(best),
                "inside": [int(v) for v in inside],
                "tiles": best[0] // 384 * (best[1] // 384) + 1,
                "tokens": attempt(lambda: [counter._get_number_of_features(height, width, 384, 384)]),
            }
        )
    write_json(FOLDER / "llava_anyres.json", {"pinpoints": pinpoints, "side": 384, "tokens_per_tile": 729,
                                              "aspect": "anyres_max_9", "cases": rows}, indent=None)


def summary(values: np.ndarray) -> dict:
    """Enough of a big byte array to compare: means of 64 equal parts (within rounding) and the beginning of 3 rows."""
    flat = values.reshape(values.shape[0], -1)
    pick = [0, flat.shape[0] // 2, flat.shape[0] - 1]
    parts = np.array_split(flat.reshape(-1).astype(np.float64), 64)
    return {
        "shape": list(values.shape),
        "sha256": hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest(),
        "means": [round(float(p.mean()), 4) for p in parts],
        "rows": {str(r): flat[r].tolist()[:300] for r in pick},
    }


def make_images() -> None:
    """Big procedural pictures through the real processors: Qwen patches and LLaVA tiles as bytes."""
    rows = []
    for seed, (height, width) in enumerate([(480, 853), (1080, 1920), (37, 641), (1200, 301)], start=1):
        picture = Image.fromarray(pixels.frame(seed, height, width))
        out = Qwen2VLImageProcessorFast(min_pixels=3136, max_pixels=256 * 784)(images=[picture], return_tensors="pt")
        rows.append({"family": "qwen2_5_vl", "size": [height, width], "seed": seed, "limits": [3136, 256 * 784],
                     "grid_thw": out["image_grid_thw"][0].tolist(), "patches": summary(to_patches(out["pixel_values"]))})
    for seed, (height, width) in enumerate([(300, 500), (700, 333)], start=5):
        picture = Image.fromarray(pixels.frame(seed, height, width))
        out = LlavaOnevisionImageProcessorFast(image_mean=[0.5] * 3, image_std=[0.5] * 3)(images=[picture], return_tensors="pt")
        tiles = ((out["pixel_values"][0] * 0.5 + 0.5) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        rows.append({"family": "llava_onevision", "size": [height, width], "seed": seed, "tiles": summary(tiles)})
    write_json(FOLDER / "images.json", rows, indent=None)


def make() -> None:
    make_smart_resize()
    make_qwen_sampling()
    make_qwen3_vl()
    make_llava_sampling()
    make_llava_anyres()
    make_images()
