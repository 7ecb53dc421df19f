// Which frames of a video a model gets to see. A rule is a named choice, because a model must get
// the frames it was trained on and the usual rules differ by up to half a second. Rules are pure
// functions of the frames' exact times; nothing is estimated from a frame rate in a header.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "video/limits.h"

namespace kinora {

// A frame of the source: its rank in presentation order and its time from the first frame.
struct SampledFrame {
  int64_t index = 0;
  double time = 0;  // seconds
  bool operator==(const SampledFrame&) const = default;
};

struct SamplingRule {
  enum class Kind {
    qwen,     // qwen-vl-utils: round(linspace(first, last, n)), n from fps, even
    every,    // the frame on screen at start, start + 1/fps, start + 2/fps …
    uniform,  // LLaVA's: `count` frames from first to last, equally far apart, rounded down
    indices,  // presentation indices
    times,    // the frames on screen at these times
    all,
  };

  Kind kind = Kind::qwen;
  double fps = 2.0;              // qwen, every
  int64_t count = 0;             // uniform; for qwen a count in place of fps when above 0
  std::vector<int64_t> indices;  // indices; any order, delivered in order of presentation
  std::vector<double> times;     // times; as above
  // Only frames on screen within [start, end] seconds count; indices and times stay absolute.
  double start = 0;
  double end = std::numeric_limits<double>::infinity();
  // qwen's own limits.
  int64_t min_frames = 4;
  int64_t max_frames = 768;
  int64_t frame_factor = 2;

  static SamplingRule qwen(double fps = 2.0);
  static SamplingRule every(double fps);
  static SamplingRule uniform(int64_t count);
  static SamplingRule at_indices(std::vector<int64_t> indices);
  static SamplingRule at_times(std::vector<double> seconds);
  static SamplingRule all_frames();
  // The same rule within [from, to] seconds.
  SamplingRule within(double from, double to) const;
};

std::string sampling_kind_name(SamplingRule::Kind kind);

// Refuses a rule that makes no sense (fps 0, negative or NaN; an empty list; start after end) with
// a usage error that shows the number. `sample_frames` and `Video::read` call it.
void check_rule(const SamplingRule& rule);

// `times` are the frames' exact times in seconds, ascending, the first one 0; `duration` is the end
// of the last frame; `fps` the average rate. The result is in order of presentation and may hold a
// frame more than once where it stays on screen for several samples.
std::vector<SampledFrame> sample_frames(const SamplingRule& rule, std::span<const double> times,
                                        double duration, double fps, const VideoLimits& limits);

}  // namespace kinora
