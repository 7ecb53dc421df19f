// Which frames of a video Qwen3-VL looks at: those that its published video processor would choose.
// Used by the family's choose_frames.
#pragma once

#include <cstdint>
#include <vector>

namespace kinora {

struct Qwen3FrameRule {
  double fps = 2;
  int64_t count = 0;  // above 0: this number in place of a rate, and no limits
  int64_t min_frames = 4;
  int64_t max_frames = 768;
};

// Numbers in [0, total), from the first to the last: round(linspace(0, total − 1, n)), halves to
// even. An odd number stays odd. `source_fps` is the video's average rate; 0, unknown, counts
// as 24.
std::vector<int64_t> qwen3_frames(const Qwen3FrameRule& rule, int64_t total, double source_fps);

}  // namespace kinora
