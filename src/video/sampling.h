// From a choice of frames to frames. The choice (kinora/frames.h) is applied to the frames' exact
// times; nothing is estimated from a frame rate in a header. What a family of models was trained to
// look at is the family's own business: here there are only ways that need no model.
#pragma once

#include <kinora/frames.h>

#include <cstdint>
#include <span>
#include <vector>

#include "video/limits.h"

namespace kinora {

// A frame of the source: its rank in presentation order and its time from the first frame.
struct SampledFrame {
  int64_t index = 0;
  double time = 0;  // seconds
  bool operator==(const SampledFrame&) const = default;
};

// Refuses a choice that makes no sense (fps 0, negative or NaN; an empty list; start after end)
// with a usage error that shows the number. `sample_frames` and `Video::read` call it, and refuse a
// choice that is left to a model as well.
void check_choice(const FrameChoice& choice);

// Frames [first, first + count).
struct FrameRange {
  int64_t first = 0;
  int64_t count = 0;
};

// The frames that begin within [start, end] seconds, of frames that begin at `times`. None when the
// part lies inside one frame or outside the video.
FrameRange frames_within(std::span<const double> times, double start, double end);

// `times` are the frames' exact times in seconds, ascending, the first one 0; `duration` is the end
// of the last frame. The result is in order of presentation and may hold a frame more than once
// where it stays on screen for several samples.
//
//   rate      the frame on screen at start, start + 1/fps, start + 2/fps …
//   count     NumPy's linspace(first, last, count, dtype=int): rounded down
//   times     the frames on screen at these times
//
// A part that lies inside one frame gives that frame.
std::vector<SampledFrame> sample_frames(const FrameChoice& choice, std::span<const double> times,
                                        double duration, const VideoLimits& limits);

}  // namespace kinora
