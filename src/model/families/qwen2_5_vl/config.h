// The vision tower of Qwen2.5-VL, as config.json describes it.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace kinora {

struct QwenVisionConfig {
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t intermediate = 0;
  int64_t output = 0;  // the decoder's hidden size
  int64_t channels = 3;
  int64_t patch = 14;
  int64_t temporal_patch = 2;
  int64_t merge = 2;                 // patches across and down that become one token
  int64_t window = 112;              // pixels
  std::vector<int64_t> full_layers;  // attend over the whole frame, not over windows
  double tokens_per_second = 2;
};

// `vision_config`; `hidden` is the decoder's. Throws as read_config does.
QwenVisionConfig read_qwen_vision(const ConfigFiles& files, int64_t hidden);

}  // namespace kinora
