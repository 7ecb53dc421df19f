#include "model/families/qwen3_vl/frames.h"

#include <algorithm>
#include <cmath>

namespace kinora {

std::vector<int64_t> qwen3_frames(const Qwen3FrameRule& rule, int64_t total, double source_fps) {
  constexpr double unknown_fps = 24;
  std::vector<int64_t> frames;
  if (total < 1) return frames;
  int64_t count = std::min(rule.count, total);
  if (rule.count <= 0) {
    const double fps = source_fps > 0 ? source_fps : unknown_fps;
    const double wanted = std::min(static_cast<double>(total) / fps * rule.fps, 1e15);
    count = std::clamp(static_cast<int64_t>(wanted), rule.min_frames, rule.max_frames);
    count = std::min(count, total);
  }
  const double step =
      count > 1 ? static_cast<double>(total - 1) / static_cast<double>(count - 1) : 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool last = count > 1 && i + 1 == count;
    const double at = last ? static_cast<double>(total - 1) : static_cast<double>(i) * step;
    frames.push_back(static_cast<int64_t>(std::nearbyint(at)));
  }
  return frames;
}

}  // namespace kinora
