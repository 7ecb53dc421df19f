"""The files that the decode benchmark reads, made by the ffmpeg tool and kept for the next run.

A synthetic scene (a panning fractal under moving light, a test card flying over it, film grain) or,
with a source video, that video scaled up and looped. A base clip is encoded once and lengthened by
stream copy, so that an hour costs seconds to make and decodes like any other hour. Base clips last a
second more than a round number: samples at round times then fall anywhere between keyframes.
"""

import hashlib
import pathlib
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Media:
    name: str
    width: int
    height: int
    encoder: tuple  # arguments of ffmpeg
    base_seconds: int
    seconds: int  # a multiple of base_seconds


X264 = ("-c:v", "libx264")
X265 = ("-c:v", "libx265", "-x265-params", "log-level=error")
FULL = {
    "x264-10min": Media("x264-10min", 1920, 1080, X264, 61, 610),
    "x264-2s-gop-10min": Media("x264-2s-gop-10min", 1920, 1080, X264 + ("-g", "48"), 61, 610),
    "hevc-10min": Media("hevc-10min", 1920, 1080, X265 + ("-preset", "fast"), 31, 620),
    "x264-1min": Media("x264-1min", 1920, 1080, X264, 61, 61),
    "x264-360p-3h": Media("x264-360p-3h", 640, 360, X264, 61, 61 * 177),
    "x264-4k-1min": Media("x264-4k-1min", 3840, 2160, X264 + ("-preset", "veryfast"), 11, 66),
}
MIDDLE = {
    "x264-10min": Media("x264-middle", 1920, 1080, X264, 31, 620),
    "x264-2s-gop-10min": Media("x264-2s-gop-middle", 1920, 1080, X264 + ("-g", "48"), 31, 620),
    "x264-1min": Media("x264-middle-1min", 1920, 1080, X264, 31, 62),
    "hevc-1min": Media("hevc-middle-1min", 1920, 1080, X265 + ("-preset", "fast"), 7, 63),
    "x264-360p-3h": Media("x264-360p-3h", 640, 360, X264, 61, 61 * 177),
    "x264-4k-short": Media("x264-4k-short", 3840, 2160, X264 + ("-preset", "veryfast"), 5, 20),
}
QUICK = {
    "x264-short": Media("x264-short", 1920, 1080, X264, 21, 63),
    "x264-2s-gop-short": Media("x264-2s-gop-short", 1920, 1080, X264 + ("-g", "48"), 11, 66),
    "hevc-short": Media("hevc-short", 1920, 1080, X265 + ("-preset", "fast"), 7, 63),
    "x264-360p-3h": Media("x264-360p-3h", 640, 360, X264, 61, 61 * 177),
    "x264-4k-short": Media("x264-4k-short", 3840, 2160, X264 + ("-preset", "veryfast"), 5, 20),
}


def scene(width, height):
    """A lavfi graph of 24 frames a second."""
    wide, high = width * 7 // 6 // 2 * 2, height * 7 // 6 // 2 * 2
    return (
        f"mandelbrot=size={width // 4}x{height // 4}:rate=24:maxiter=400:start_scale=2.5:"
        f"end_scale=0.05:end_pts=1500,format=yuv420p,scale={wide}:{high}:flags=bilinear,"
        f"crop={width}:{height}:x='(in_w-out_w)/2*(1+0.9*sin(t*0.7))'"
        f":y='(in_h-out_h)/2*(1+0.9*cos(t*0.5))'[back];"
        f"gradients=size={width // 6}x{height // 6}:rate=24:speed=0.02:nb_colors=4:seed=1,"
        f"format=yuv420p,scale={width}:{height}:flags=bilinear[light];"
        f"testsrc2=size={width // 4}x{height // 4}:rate=24,format=yuv420p[card];"
        f"[back][light]blend=all_mode=average[lit];"
        f"[lit][card]overlay=x='(W-w)/2*(1+0.8*sin(t*0.9))':y='(H-h)/2*(1+0.8*cos(t*0.6))',"
        f"noise=alls=7:allf=t+u,format=yuv420p")


def ffmpeg(arguments):
    subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-y", *map(str, arguments)], check=True)


def make(media, folder, source=None):
    """The path of the file; makes it when it is not there yet."""
    kind = "scene" if source is None else hashlib.sha1(str(source).encode()).hexdigest()[:8]
    base_key = hashlib.sha1(repr((media.width, media.height, media.encoder, media.base_seconds, kind,
                                  scene(media.width, media.height))).encode()).hexdigest()[:10]
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{media.name}-{base_key}.mp4"
    if path.exists():
        return path
    base = folder / f"base-{base_key}.mp4"
    if not base.exists():
        print(f"making {media.name}: encoding {media.base_seconds} s of {media.width}x{media.height}", flush=True)
        part = base.with_suffix(".part.mp4")
        if source is None:
            picture = ["-f", "lavfi", "-i", scene(media.width, media.height)]
        else:
            picture = ["-stream_loop", "-1", "-i", source, "-an", "-vf",
                       f"fps=24,scale={media.width}:{media.height}:flags=bicubic,format=yuv420p"]
        ffmpeg([*picture, "-t", media.base_seconds, *media.encoder, part])
        part.rename(base)
    part = path.with_suffix(".part.mp4")
    ffmpeg(["-stream_loop", media.seconds // media.base_seconds - 1, "-i", base, "-c", "copy", part])
    part.rename(path)
    return path


def lengthen(clip, seconds, folder):
    """A copy of the clip that plays at least so long, made by stream copy."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{pathlib.Path(clip).stem}-{seconds}s.mp4"
    if not path.exists():
        part = path.with_suffix(".part.mp4")
        ffmpeg(["-stream_loop", -1, "-i", clip, "-t", seconds, "-an", "-c", "copy", part])
        part.rename(path)
    return path
