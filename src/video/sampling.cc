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

// Frames [first, last] whose time lies within the rule's range.
struct Range {
  int64_t first = 0;
  int64_t last = 0;
  int64_t count() const { return last - first + 1; }
};

// The last frame whose time is not after `time`; 0 when all are.
int64_t frame_at(std::span<const double> times, double time) {
  const auto after = std::upper_bound(times.begin(), times.end(), time + tolerance);
  return std::max<int64_t>(0, after - times.begin() - 1);
}

Range frames_within(const SamplingRule& rule, std::span<const double> times) {
  const auto begin = std::lower_bound(times.begin(), times.end(), rule.start - tolerance);
  const Range range{begin - times.begin(), frame_at(times, rule.end)};
  if (range.first <= range.last) return range;
  const int64_t on_screen = frame_at(times, rule.start);  // the range lies inside one frame
  return {on_screen, on_screen};
}

void check_count(double count, const VideoLimits& limits) {
  if (count > static_cast<double>(limits.max_samples)) {
    throw Error(ErrorKind::resource,
                fmt::format("the sampling asks for {:.0f} frames, the limit is {}: ask for fewer "
                            "or raise the limit",
                            count, limits.max_samples));
  }
}

// round(linspace(first, last, count)) in single precision, halves to even, as PyTorch computes it:
// from both ends towards the middle, product and sum rounded once. Plain operators would leave that
// to the compiler.
std::vector<int64_t> rounded_line(int64_t first, int64_t last, int64_t count) {
  std::vector<int64_t> picks;
  picks.reserve(static_cast<size_t>(count));
  const float begin = static_cast<float>(first);
  const float end = static_cast<float>(last);
  const float step = count > 1 ? (end - begin) / static_cast<float>(count - 1) : 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float value = i < count / 2 ? std::fma(step, static_cast<float>(i), begin)
                                      : std::fma(-step, static_cast<float>(count - 1 - i), end);
    const int64_t pick = static_cast<int64_t>(std::nearbyint(count > 1 ? value : begin));
    picks.push_back(std::clamp(pick, first, last));
  }
  return picks;
}

std::vector<int64_t> sample_qwen(const SamplingRule& rule, const Range& range, double fps) {
  const int64_t total = range.count();
  const auto floored = [&](double value) {
    return static_cast<int64_t>(std::floor(value / static_cast<double>(rule.frame_factor))) *
           rule.frame_factor;
  };
  int64_t count = 0;
  if (rule.count > 0) {
    count = static_cast<int64_t>(std::nearbyint(static_cast<double>(rule.count) /
                                                static_cast<double>(rule.frame_factor))) *
            rule.frame_factor;
    count = std::min(count, floored(static_cast<double>(total)));
  } else {
    const double least =
        std::ceil(static_cast<double>(rule.min_frames) / static_cast<double>(rule.frame_factor)) *
        static_cast<double>(rule.frame_factor);
    const double most = static_cast<double>(
        floored(static_cast<double>(std::min<int64_t>(rule.max_frames, total))));
    const double wanted = fps > 0 ? static_cast<double>(total) / fps * rule.fps : least;
    count = floored(std::min({std::max(wanted, least), most, static_cast<double>(total)}));
  }
  return rounded_line(range.first, range.last, std::max<int64_t>(count, 1));
}

std::vector<int64_t> sample_every(const SamplingRule& rule, std::span<const double> times,
                                  double duration, const VideoLimits& limits) {
  const double end = std::min(rule.end, duration);
  const double wanted = std::ceil((end - rule.start) * rule.fps - tolerance);
  check_count(wanted, limits);
  const int64_t count = std::max<int64_t>(1, static_cast<int64_t>(wanted));
  std::vector<int64_t> picks;
  for (int64_t i = 0; i < count; ++i) {
    picks.push_back(frame_at(times, rule.start + static_cast<double>(i) / rule.fps));
  }
  return picks;
}

// As NumPy's linspace(first, last, count, dtype=int): whole frames, rounded down.
std::vector<int64_t> sample_uniform(const SamplingRule& rule, const Range& range) {
  const int64_t count = std::min(rule.count, range.count());
  const double step =
      count > 1 ? static_cast<double>(range.last - range.first) / static_cast<double>(count - 1)
                : 0.0;
  std::vector<int64_t> picks;
  for (int64_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(i) * step + static_cast<double>(range.first);
    picks.push_back(i + 1 == count && count > 1 ? range.last : static_cast<int64_t>(value));
  }
  return picks;
}

std::vector<int64_t> sample_indices(const SamplingRule& rule, int64_t total) {
  for (const int64_t index : rule.indices) {
    if (index < 0 || index >= total) {
      refuse(
          fmt::format("frame {} does not exist: the video has frames 0 to {}", index, total - 1));
    }
  }
  return rule.indices;
}

std::vector<int64_t> sample_times(const SamplingRule& rule, std::span<const double> times,
                                  double duration) {
  std::vector<int64_t> picks;
  for (const double time : rule.times) {
    if (time > duration + tolerance && time > times.back()) {
      refuse(
          fmt::format("there is no frame at {:.3f} s: the video ends at {:.3f} s", time, duration));
    }
    picks.push_back(frame_at(times, time));
  }
  return picks;
}

}  // namespace

SamplingRule SamplingRule::qwen(double fps) {
  SamplingRule rule;
  rule.fps = fps;
  return rule;
}

SamplingRule SamplingRule::every(double fps) {
  SamplingRule rule = qwen(fps);
  rule.kind = Kind::every;
  return rule;
}

SamplingRule SamplingRule::uniform(int64_t count) {
  SamplingRule rule;
  rule.kind = Kind::uniform;
  rule.count = count;
  return rule;
}

SamplingRule SamplingRule::at_indices(std::vector<int64_t> indices) {
  SamplingRule rule;
  rule.kind = Kind::indices;
  rule.indices = std::move(indices);
  return rule;
}

SamplingRule SamplingRule::at_times(std::vector<double> seconds) {
  SamplingRule rule;
  rule.kind = Kind::times;
  rule.times = std::move(seconds);
  return rule;
}

SamplingRule SamplingRule::all_frames() {
  SamplingRule rule;
  rule.kind = Kind::all;
  return rule;
}

SamplingRule SamplingRule::within(double from, double to) const {
  SamplingRule rule = *this;
  rule.start = from;
  rule.end = to;
  return rule;
}

std::string sampling_kind_name(SamplingRule::Kind kind) {
  switch (kind) {
    case SamplingRule::Kind::qwen:
      return "qwen";
    case SamplingRule::Kind::every:
      return "every";
    case SamplingRule::Kind::uniform:
      return "uniform";
    case SamplingRule::Kind::indices:
      return "indices";
    case SamplingRule::Kind::times:
      return "times";
    case SamplingRule::Kind::all:
      return "all";
  }
  return "unknown";
}

void check_rule(const SamplingRule& rule) {
  using Kind = SamplingRule::Kind;
  const bool by_rate = rule.kind == Kind::every || (rule.kind == Kind::qwen && rule.count == 0);
  if (by_rate && !(rule.fps > 0 && rule.fps <= 1e6)) {
    refuse(fmt::format("{} frames per second cannot be sampled: fps must be above 0", rule.fps));
  }
  if (rule.count < 0 || (rule.kind == Kind::uniform && rule.count == 0)) {
    refuse(fmt::format("{} frames cannot be sampled: the count must be above 0", rule.count));
  }
  if (!(rule.start >= 0) || std::isinf(rule.start) || !(rule.end >= rule.start)) {
    refuse(fmt::format("the range {} to {} s makes no sense: 0 ≤ start ≤ end is needed", rule.start,
                       rule.end));
  }
  if (rule.kind == Kind::indices && rule.indices.empty()) refuse("the list of frames is empty");
  if (rule.kind == Kind::times && rule.times.empty()) refuse("the list of times is empty");
  for (const double time : rule.times) {
    if (!(time >= 0) || std::isinf(time)) {
      refuse(fmt::format("a frame at {} s cannot be sampled: times begin at 0", time));
    }
  }
  if (rule.frame_factor < 1 || rule.min_frames < 1 || rule.max_frames < rule.min_frames) {
    refuse(fmt::format("frame limits {} to {} in steps of {} make no sense", rule.min_frames,
                       rule.max_frames, rule.frame_factor));
  }
}

std::vector<SampledFrame> sample_frames(const SamplingRule& rule, std::span<const double> times,
                                        double duration, double fps, const VideoLimits& limits) {
  using Kind = SamplingRule::Kind;
  check_rule(rule);
  const int64_t total = static_cast<int64_t>(times.size());
  if (total == 0) throw Error(ErrorKind::bad_input, "the video has no frames");
  if (total > 1 && rule.start > std::max(duration, times.back()) + tolerance) {
    refuse(fmt::format("the range begins at {:.3f} s, but the video ends at {:.3f} s", rule.start,
                       duration));
  }
  const Range range = frames_within(rule, times);

  std::vector<int64_t> picks;
  switch (rule.kind) {
    case Kind::qwen:
      picks = sample_qwen(rule, range, fps);
      break;
    case Kind::every:
      picks = sample_every(rule, times, duration, limits);
      break;
    case Kind::uniform:
      picks = sample_uniform(rule, range);
      break;
    case Kind::indices:
      picks = sample_indices(rule, total);
      break;
    case Kind::times:
      picks = sample_times(rule, times, duration);
      break;
    case Kind::all:
      check_count(static_cast<double>(range.count()), limits);
      for (int64_t i = range.first; i <= range.last; ++i) picks.push_back(i);
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
