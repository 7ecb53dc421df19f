// The vision tower of Qwen3-VL, as config.json describes it, and the form of its video prompts.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/model.h"

namespace kinora {

struct Qwen3VisionConfig {
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t intermediate = 0;
  int64_t output = 0;  // the decoder's hidden size
  int64_t channels = 3;
  int64_t patch = 16;
  int64_t temporal_patch = 2;
  int64_t merge = 2;                 // patches across and down that become one token
  int64_t position_side = 48;        // the table of positions has this many rows and columns
  std::vector<int64_t> deep_layers;  // increasing; their outputs go to the decoder's first layers

  int64_t levels() const { return static_cast<int64_t>(deep_layers.size()); }
};

// `vision_config`; the decoder is that of the same files. Throws as read_config does.
Qwen3VisionConfig read_qwen3_vision(const ConfigFiles& files, const DecoderConfig& decoder);

// How a directory wants its videos written: what its `transformers_version` made of them. Files
// that name none are taken for old ones. Never `by_file`.
VideoPromptForm video_prompt_form(const ConfigFiles& files);

}  // namespace kinora
