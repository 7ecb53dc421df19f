#include "model/families/qwen2_5_vl/frames.h"

#include <algorithm>
#include <cmath>

namespace kinora {
namespace {

constexpr int64_t frame_factor = 2;  // a temporal patch is a pair of frames

int64_t floored(double frames) {
  return static_cast<int64_t>(std::floor(frames / static_cast<double>(frame_factor))) *
         frame_factor;
}

int64_t frame_count(const QwenFrameRule& rule, int64_t total, double source_fps) {
  const auto all = static_cast<double>(total);
  const auto factor = static_cast<double>(frame_factor);
  if (rule.count > 0) {
    const int64_t wanted =
        static_cast<int64_t>(std::nearbyint(static_cast<double>(rule.count) / factor)) *
        frame_factor;
    return std::min(wanted, floored(all));
  }
  const double least = std::ceil(static_cast<double>(rule.min_frames) / factor) * factor;
  const auto most =
      static_cast<double>(floored(static_cast<double>(std::min<int64_t>(rule.max_frames, total))));
  const double wanted = source_fps > 0 ? all / source_fps * rule.fps : least;
  return floored(std::min({std::max(wanted, least), most, all}));
}

}  // namespace

// linspace in single precision, halves to even, as PyTorch computes it: from both ends towards the
// middle, product and sum rounded once. Plain operators would leave that to the compiler.
std::vector<int64_t> qwen_frames(const QwenFrameRule& rule, int64_t first, int64_t total,
                                 double source_fps) {
  std::vector<int64_t> frames;
  if (total < 1) return frames;
  const int64_t last = first + total - 1;
  const int64_t count = std::max<int64_t>(1, frame_count(rule, total, source_fps));
  frames.reserve(static_cast<size_t>(count));
  const auto begin = static_cast<float>(first);
  const auto end = static_cast<float>(last);
  const float step = count > 1 ? (end - begin) / static_cast<float>(count - 1) : 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float value = i < count / 2 ? std::fma(step, static_cast<float>(i), begin)
                                      : std::fma(-step, static_cast<float>(count - 1 - i), end);
    const auto frame = static_cast<int64_t>(std::nearbyint(count > 1 ? value : begin));
    frames.push_back(std::clamp(frame, first, last));
  }
  std::sort(frames.begin(), frames.end());
  return frames;
}

}  // namespace kinora
