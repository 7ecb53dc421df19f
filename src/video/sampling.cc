#include "video/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace kinora {

namespace {

// Times are quotients of integers, so equal times may differ in the last bits. No two frames are
// as close as this.
constexpr double tolerance = 1e-6;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorKind::usage, message); }

// The last frame whose time is not after `time`; 0 when all are.
int64_t frame_at(std::span<const double> times, double time) {
  const auto after = std::upper_bound(times.begin(), times.end(), time + tolerance);
  return std::max<int64_t>(0, after - times.begin() - 1);
}

void check_count(double count, const VideoLimits& limits) {
  if (count > static_cast<double>(limits.max_samples)) {
    throw Error(ErrorKind::resource,
                fmt::format("the sampling asks for {:.0f} frames, the limit is {}: ask for fewer "
                            "or raise the limits{}",
                            count, limits.max_samples, limits.how_to_raise));
  }
}

std::vector<int64_t> sample_rate(const FrameChoice& choice, std::span<const double> times,
                                 double duration, const VideoLimits& limits) {
  const double end = std::min(choice.end, duration);
  const double wanted = std::ceil((end - choice.start) * choice.fps - tolerance);
  check_count(wanted, limits);
  const int64_t count = std::max<int64_t>(1, static_cast<int64_t>(wanted));
  std::vector<int64_t> picks;
  for (int64_t i = 0; i < count; ++i) {
    picks.push_back(frame_at(times, choice.start + static_cast<double>(i) / choice.fps));
  }
  return picks;
}

// As NumPy's linspace(first, last, count, dtype=int): whole frames, rounded down.
std::vector<int64_t> sample_evenly(const FrameChoice& choice, const FrameRange& range) {
  const int64_t count = std::min(choice.count, range.count);
  const int64_t last = range.first + range.count - 1;
  const double step =
      count > 1 ? static_cast<double>(last - range.first) / static_cast<double>(count - 1) : 0.0;
  std::vector<int64_t> picks;
  for (int64_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(i) * step + static_cast<double>(range.first);
    picks.push_back(i + 1 == count && count > 1 ? last : static_cast<int64_t>(value));
  }
  return picks;
}

std::vector<int64_t> sample_indices(const FrameChoice& choice, int64_t total) {
  for (const int64_t index : choice.indices) {
    if (index < 0 || index >= total) {
      refuse(
          fmt::format("frame {} does not exist: the video has frames 0 to {}", index, total - 1));
    }
  }
  return choice.indices;
}

std::vector<int64_t> sample_times(const FrameChoice& choice, std::span<const double> times,
                                  double duration) {
  std::vector<int64_t> picks;
  for (const double time : choice.times) {
    if (time > duration + tolerance && time > times.back()) {
      refuse(
          fmt::format("there is no frame at {:.3f} s: the video ends at {:.3f} s", time, duration));
    }
    picks.push_back(frame_at(times, time));
  }
  return picks;
}

}  // namespace

void check_choice(const FrameChoice& choice) {
  using Way = FrameChoice::Way;
  if (choice.way == Way::rate && !(choice.fps > 0 && choice.fps <= 1e6)) {
    refuse(fmt::format("{} frames per second cannot be sampled: fps must be above 0", choice.fps));
  }
  if (choice.way == Way::count && choice.count < 1) {
    refuse(fmt::format("{} frames cannot be sampled: the count must be above 0", choice.count));
  }
  if (!(choice.start >= 0) || std::isinf(choice.start) || !(choice.end >= choice.start)) {
    refuse(fmt::format("the range {} to {} s makes no sense: 0 ≤ start ≤ end is needed",
                       choice.start, choice.end));
  }
  if (!(choice.snap >= 0) || std::isinf(choice.snap)) {
    refuse(fmt::format("frames cannot be taken from {} s away: a distance of 0 or more is needed",
                       choice.snap));
  }
  if (choice.way == Way::indices && choice.indices.empty()) refuse("the list of frames is empty");
  if (choice.way != Way::times) return;
  if (choice.times.empty()) refuse("the list of times is empty");
  for (const double time : choice.times) {
    if (!(time >= 0) || std::isinf(time)) {
      refuse(fmt::format("a frame at {} s cannot be sampled: times begin at 0", time));
    }
  }
}

FrameRange frames_within(std::span<const double> times, double start, double end) {
  const auto first = std::lower_bound(times.begin(), times.end(), start - tolerance);
  const auto last = std::upper_bound(first, times.end(), end + tolerance);
  return {first - times.begin(), last - first};
}

std::vector<SampledFrame> sample_frames(const FrameChoice& choice, std::span<const double> times,
                                        double duration, const VideoLimits& limits) {
  using Way = FrameChoice::Way;
  check_choice(choice);
  const int64_t total = static_cast<int64_t>(times.size());
  if (total == 0) throw Error(ErrorKind::bad_input, "the video has no frames");
  if (total > 1 && choice.start > std::max(duration, times.back()) + tolerance) {
    refuse(fmt::format("the range begins at {:.3f} s, but the video ends at {:.3f} s", choice.start,
                       duration));
  }
  FrameRange range = frames_within(times, choice.start, choice.end);
  if (range.count == 0) range = {frame_at(times, choice.start), 1};

  std::vector<int64_t> picks;
  switch (choice.way) {
    case Way::model:
      refuse("no model is here to choose the frames: choose them by rate, number or time");
    case Way::rate:
      picks = sample_rate(choice, times, duration, limits);
      break;
    case Way::count:
      picks = sample_evenly(choice, range);
      break;
    case Way::times:
      picks = sample_times(choice, times, duration);
      break;
    case Way::indices:
      picks = sample_indices(choice, total);
      break;
    case Way::all:
      check_count(static_cast<double>(range.count), limits);
      for (int64_t i = 0; i < range.count; ++i) picks.push_back(range.first + i);
      break;
  }
  check_count(static_cast<double>(picks.size()), limits);
  std::sort(picks.begin(), picks.end());
  std::vector<SampledFrame> samples;
  samples.reserve(picks.size());
  for (const int64_t index : picks) {
    samples.push_back({index, times[static_cast<size_t>(index)]});
  }
  return samples;
}

}  // namespace kinora
