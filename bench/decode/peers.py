"""One run of one peer, in a process of its own: sampled frames of a file, resized, all in memory.

    peers.py PEER FILE --every SECONDS --size SIDE --threads N --access stream|seek

Prints one line of JSON: seconds from opening the file to the last frame, seconds to the sixteenth,
number of frames, peak and baseline memory. Imports are not timed. Frames are taken in batches of
sixteen, which no peer is slower with.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

GROUP = 16


def peak_mb(who=resource.RUSAGE_SELF):
    return resource.getrusage(who).ru_maxrss / 1024


def cpu_seconds():
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def times_every(duration, every):
    count = max(1, int(-(-(duration - 1e-6) // every)))
    return [i * every for i in range(count)]


def decord_frames(arguments):
    import decord

    yield None
    reader = decord.VideoReader(arguments.file, ctx=decord.cpu(0), width=arguments.size,
                                height=arguments.size, num_threads=arguments.threads)
    fps = reader.get_avg_fps()
    indices = [min(len(reader) - 1, int(t * fps + 1e-6))
               for t in times_every(len(reader) / fps, arguments.every)]
    for i in range(0, len(indices), GROUP):
        yield from reader.get_batch(indices[i:i + GROUP]).asnumpy()


def torchcodec_frames(arguments):
    import torch
    from torchcodec.decoders import VideoDecoder

    torch.set_num_threads(arguments.threads)
    extra = {}
    try:
        from torchcodec.transforms import Resize

        extra = {"transforms": [Resize((arguments.size, arguments.size))]}
    except ImportError:
        pass
    yield None
    decoder = VideoDecoder(arguments.file, num_ffmpeg_threads=arguments.threads, **extra)
    wanted = times_every(decoder.metadata.duration_seconds, arguments.every)
    for i in range(0, len(wanted), GROUP):
        batch = decoder.get_frames_played_at(seconds=wanted[i:i + GROUP]).data
        if not extra:
            batch = torch.nn.functional.interpolate(batch, (arguments.size, arguments.size),
                                                    mode="bicubic", antialias=True)
        yield from batch.permute(0, 2, 3, 1).numpy()


def pyav_frames(arguments):
    import av

    yield None
    container = av.open(arguments.file)
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    stream.codec_context.thread_count = arguments.threads
    base = float(stream.time_base)
    start = (stream.start_time or 0) * base
    wanted = times_every(float(stream.duration) * base, arguments.every)

    def rgb(frame):
        return frame.reformat(width=arguments.size, height=arguments.size, format="rgb24",
                              interpolation="BICUBIC").to_ndarray()

    if arguments.access == "seek":
        for moment in wanted:
            container.seek(int((moment + start) / base), stream=stream)
            last = None
            for frame in container.decode(stream):
                if frame.time - start > moment + 1e-6:
                    break
                last = frame
            if last is not None:
                yield rgb(last)
        return
    at = 0
    last = None
    for frame in container.decode(stream):
        while at < len(wanted) and last is not None and frame.time - start > wanted[at] + 1e-6:
            yield rgb(last)
            at += 1
        if at >= len(wanted):
            return
        last = frame
    while at < len(wanted) and last is not None:
        yield rgb(last)
        at += 1


def opencv_frames(arguments):
    os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = f"threads;{arguments.threads}"
    import cv2

    cv2.setNumThreads(arguments.threads)
    yield None
    capture = cv2.VideoCapture(arguments.file, cv2.CAP_FFMPEG)
    fps = capture.get(cv2.CAP_PROP_FPS)
    total = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    indices = [min(total - 1, int(t * fps + 1e-6)) for t in times_every(total / fps, arguments.every)]
    position = 0
    for index in indices:
        if arguments.access == "seek":
            capture.set(cv2.CAP_PROP_POS_FRAMES, index)
        else:
            while position < index:
                capture.grab()
                position += 1
        good, picture = capture.read()
        position += 1
        if not good:
            return
        small = cv2.resize(picture, (arguments.size, arguments.size), interpolation=cv2.INTER_AREA)
        yield cv2.cvtColor(small, cv2.COLOR_BGR2RGB)


def ffmpeg_frames(arguments):
    yield None
    size = arguments.size
    # Without round=up the filter would give the frame half a gap later; start_time pins the first.
    process = subprocess.Popen(
        ["ffmpeg", "-nostdin", "-v", "error", "-threads", str(arguments.threads), "-i", arguments.file,
         "-an", "-vf", f"fps=1/{arguments.every}:round=up:start_time=0,scale={size}:{size}:flags=bicubic",
         "-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:1"], stdout=subprocess.PIPE)
    while True:
        data = process.stdout.read(size * size * 3)
        if len(data) < size * size * 3:
            break
        yield data
    if process.wait() != 0:
        raise RuntimeError("ffmpeg failed")


PEERS = {"decord": decord_frames, "torchcodec": torchcodec_frames, "pyav": pyav_frames,
         "opencv": opencv_frames, "ffmpeg": ffmpeg_frames}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("file")
    parser.add_argument("--every", type=float, default=1)
    parser.add_argument("--size", type=int, default=448)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--access", choices=["stream", "seek"], default="stream")
    arguments = parser.parse_args()
    frames = PEERS[arguments.peer](arguments)
    next(frames)  # imports are done now
    baseline = peak_mb()
    busy = cpu_seconds()
    start = time.perf_counter()
    first = 0.0
    kept = 0
    for kept, _ in enumerate(frames, 1):
        if kept == GROUP:
            first = time.perf_counter() - start
    seconds = time.perf_counter() - start
    peak = peak_mb()
    if arguments.peer == "ffmpeg":
        peak, baseline = peak_mb(resource.RUSAGE_CHILDREN), 0.0
    json.dump({"seconds": seconds, "first": first or seconds, "frames": kept, "peak_mb": peak,
               "baseline_mb": baseline, "cpu": cpu_seconds() - busy}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
