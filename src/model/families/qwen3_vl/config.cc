#include "model/families/qwen3_vl/config.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "model/config_files.h"

namespace kinora {
namespace {

std::vector<int64_t> read_deep_layers(const ConfigSection& config, int64_t depth,
                                      int64_t decoder_layers) {
  constexpr const char* key = "deepstack_visual_indexes";
  const nlohmann::json* value = config.find(key);
  std::vector<int64_t> result;
  if (value == nullptr || !value->is_array()) config.wrong(key, "is not a list of blocks");
  for (const nlohmann::json& index : *value) {
    if (!index.is_number_unsigned() || index.get<uint64_t>() >= static_cast<uint64_t>(depth) ||
        (!result.empty() && index.get<int64_t>() <= result.back())) {
      config.wrong(key, fmt::format("must be increasing numbers below the depth {}", depth));
    }
    result.push_back(index.get<int64_t>());
  }
  if (static_cast<int64_t>(result.size()) >= decoder_layers) {
    config.wrong(key, fmt::format("names {} blocks; with {} decoder layers there must be fewer",
                                  result.size(), decoder_layers));
  }
  return result;
}

int64_t read_position_side(const ConfigSection& config) {
  const int64_t count = config.integer("num_position_embeddings", 1, 1 << 24, 2304);
  const auto side = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(count))));
  if (side * side != count) {
    config.wrong("num_position_embeddings", fmt::format("is {}, which is no square", count));
  }
  return side;
}

}  // namespace

Qwen3VisionConfig read_qwen3_vision(const ConfigFiles& files, const DecoderConfig& decoder) {
  const ConfigSection config = files.top().object("vision_config");
  Qwen3VisionConfig result;
  result.hidden = config.integer("hidden_size", 1, max_layer_width);
  result.layers = config.integer("depth", 1, 1024);
  result.heads = config.integer("num_heads", 1, 4096);
  result.intermediate = config.integer("intermediate_size", 1, max_layer_width);
  result.output = config.integer("out_hidden_size", 1, max_layer_width, decoder.hidden);
  result.channels = config.integer("in_channels", 3, 3, 3);
  result.patch = config.integer("patch_size", 1, 256, 16);
  result.temporal_patch = config.integer("temporal_patch_size", 1, 16, 2);
  result.merge = config.integer("spatial_merge_size", 1, 16, 2);
  result.position_side = read_position_side(config);
  result.deep_layers = read_deep_layers(config, result.layers, decoder.layers);
  if (result.output != decoder.hidden) {
    config.wrong("out_hidden_size",
                 fmt::format("is {} where the decoder has {}", result.output, decoder.hidden));
  }
  if (result.hidden % result.heads != 0 || (result.hidden / result.heads) % 4 != 0) {
    config.wrong("num_heads", "must give heads whose size is a multiple of 4");
  }
  expect_text(config, "hidden_act", "gelu_pytorch_tanh", " here");
  return result;
}

VideoPromptForm video_prompt_form(const ConfigFiles& files) {
  constexpr int new_major = 5, new_minor = 10;
  const std::string version = files.top().text("transformers_version", "");
  int major = 0, minor = 0;
  const char* end = version.data() + version.size();
  const auto first = std::from_chars(version.data(), end, major);
  if (first.ptr != end && *first.ptr == '.') std::from_chars(first.ptr + 1, end, minor);
  const bool newer = major > new_major || (major == new_major && minor >= new_minor);
  return newer ? VideoPromptForm::transformers_5_10 : VideoPromptForm::transformers_4_57;
}

}  // namespace kinora
