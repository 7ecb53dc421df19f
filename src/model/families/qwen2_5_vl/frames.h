// Which frames of a video Qwen2.5-VL looks at: those that qwen-vl-utils, used in training, would
// choose. Used by the family's choose_frames, and to say what a question would cost.
#pragma once

#include <cstdint>
#include <vector>

namespace kinora {

struct QwenFrameRule {
  double fps = 2;
  int64_t count = 0;  // above 0: this number in place of a rate, and no limits
  int64_t min_frames = 4;
  int64_t max_frames = 768;
};

// An even number of the `total` frames from `first` on (a single one of a single frame), from the
// first to the last: round(linspace(first, first + total − 1, n)). `source_fps` is the video's
// average rate, 0 when it is unknown. Presentation indices of the source.
std::vector<int64_t> qwen_frames(const QwenFrameRule& rule, int64_t first, int64_t total,
                                 double source_fps);

}  // namespace kinora
