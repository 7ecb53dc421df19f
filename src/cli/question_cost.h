// What a question about a video costs, family by family, with each family's published settings:
// how many frames it looks at, at what size, and how many tokens they become. Used by
// command_probe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "video/video.h"

namespace kinora::cli {

struct QuestionCost {
  std::string family;  // "Qwen2.5-VL"
  std::string rule;    // "2 frames a second, at most 768"
  int64_t frames = 0;
  FrameSize size;
  int64_t tokens = 0;
  int64_t row_bytes = 0;  // keys and values of the family's 7B model in 16 bits
  std::string problem;    // why the family cannot look at this video, else empty
};

std::vector<QuestionCost> question_costs(Video& video);

}  // namespace kinora::cli
