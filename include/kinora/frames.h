// Which frames of a video to look at. Part of the public API: plain types only.
//
//   FrameChoice{}                              the model's own choice
//   FrameChoice::rate(1)                       one frame per second
//   FrameChoice::evenly(32).within(60, 120)    32 frames of the second minute
//   FrameChoice::at_times({12.5, 90})          the frames on screen at these seconds
//   FrameChoice{.start = 60}                   the model's own choice, after the first minute
//
// The same struct is used by Session::add (InputOptions::frames), by VideoFile::read
// (FrameRequest::frames) and by everything behind them.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace kinora {

struct FrameChoice {
  enum class Way {
    model,    // as the model's family was trained: its rate or number of frames, and its limits
    rate,     // `fps` frames per second, at even distances in time
    count,    // `count` frames, evenly spread from the first to the last
    times,    // the frames on screen at `times`
    indices,  // the frames numbered `indices`
    all,      // every frame
  };

  // Only the field that belongs to the chosen way is read. Frames always come in presentation
  // order; one that stays on screen for several samples, or is listed twice, is repeated.
  Way way = Way::model;
  double fps = 0;                     // above 0
  int64_t count = 0;                  // above 0; a video with fewer frames gives those it has
  std::vector<double> times = {};     // seconds from the first frame, in any order
  std::vector<int64_t> indices = {};  // ranks in order of presentation from 0, in any order

  // The part of the video that counts, in seconds from the first frame, both ends included.
  // `times` and `indices` are those of the whole video and may lie outside of it.
  double start = 0;
  double end = std::numeric_limits<double>::infinity();

  // Each sample may take another frame, at most this many seconds away, that is cheaper to decode:
  // a keyframe, or one near it. 0: exactly the frames chosen. Frames report their true times.
  double snap = 0;

  static FrameChoice rate(double fps) { return {.way = Way::rate, .fps = fps}; }
  static FrameChoice evenly(int64_t count) { return {.way = Way::count, .count = count}; }
  static FrameChoice at_times(std::vector<double> seconds) {
    return {.way = Way::times, .times = std::move(seconds)};
  }
  static FrameChoice at_indices(std::vector<int64_t> indices) {
    return {.way = Way::indices, .indices = std::move(indices)};
  }
  static FrameChoice all() { return {.way = Way::all}; }

  // The same choice within [from, to] seconds.
  FrameChoice within(double from, double to) const {
    FrameChoice part = *this;
    part.start = from;
    part.end = to;
    return part;
  }

  bool operator==(const FrameChoice&) const = default;
};

}  // namespace kinora
