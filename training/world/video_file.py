"""Worlds as real video files: H.264 through the ffmpeg tool, and back to frames."""
import json
import subprocess

import numpy as np
import torch

from training.world import scene


def _run(command, **options):
    try:
        done = subprocess.run(command, capture_output=True, **options)
    except FileNotFoundError:
        raise SystemExit(f"{command[0]} is not installed: it writes and reads the H.264 files") from None
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {done.stderr.decode(errors='replace').strip().splitlines()[-1]}")
    return done.stdout


CODECS = {"libx264": lambda quality: ["-preset", "veryfast", "-crf", str(quality)], "mpeg4": lambda quality: ["-q:v", str(quality)]}


def write(path, world, renderer, height, width, steps=1, quality=20, chunk=256, worn=False, codec="libx264"):
    """Encodes a world at its own frame rate; steps > 1: that many drawn frames per sampled frame, for smooth motion."""
    command = ["ffmpeg", "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{world.fps * steps:g}",
               "-i", "-", "-c:v", codec, *CODECS[codec](quality), "-g", "48", "-threads", "1", "-pix_fmt", "yuv420p",
               "-color_primaries", "bt709", "-color_trc", "bt709", "-colorspace", "bt709",
               "-vf", "scale=out_color_matrix=bt709:out_range=tv:flags=accurate_rnd+full_chroma_int", "-movflags", "+faststart", str(path)]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    except FileNotFoundError:
        raise SystemExit("ffmpeg is not installed: it writes the files") from None
    rows = torch.from_numpy(scene.parameters(world, steps)).to(renderer.device)
    try:
        for part in rows.split(chunk):
            frames = renderer.draw(part, height, width)
            frames = renderer.worn(frames, part) if worn else frames
            pixels = (frames.permute(0, 2, 3, 1) * 255).round().to(torch.uint8)
            process.stdin.write(pixels.cpu().numpy().tobytes())
        process.stdin.close()
    except BrokenPipeError:
        pass
    with process.stderr:
        problem = process.stderr.read().decode(errors="replace").strip()
    if process.wait():
        raise SystemExit(f"ffmpeg could not write {path}: {problem}")


def write_image(path, world, renderer, height, width):
    from PIL import Image
    rows = torch.from_numpy(scene.parameters(world)).to(renderer.device)
    pixels = (renderer.draw(rows, height, width)[0].permute(1, 2, 0) * 255).round().to(torch.uint8)
    Image.fromarray(pixels.cpu().numpy()).save(path)


def read(path):
    """uint8 [frames, height, width, 3] and the frame rate"""
    about = json.loads(_run(["ffprobe", "-v", "error", "-select_streams", "v:0", "-show_entries", "stream=width,height,r_frame_rate",
                             "-of", "json", str(path)]))["streams"][0]
    pixels = _run(["ffmpeg", "-v", "error", "-i", str(path), "-vsync", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"])
    up, down = map(int, about["r_frame_rate"].split("/"))
    return np.frombuffer(pixels, np.uint8).reshape(-1, about["height"], about["width"], 3), up / down
