#include "model/families/qwen2_5_vl/config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "model/config_files.h"

namespace kinora {
namespace {

std::vector<int64_t> read_full_layers(const ConfigSection& config, int64_t layers) {
  const nlohmann::json* value = config.find("fullatt_block_indexes");
  if (value == nullptr) return {7, 15, 23, 31};
  std::vector<int64_t> result;
  if (!value->is_array()) config.wrong("fullatt_block_indexes", "is not a list");
  for (const nlohmann::json& index : *value) {
    if (!index.is_number_unsigned() || index.get<uint64_t>() >= static_cast<uint64_t>(layers)) {
      config.wrong("fullatt_block_indexes",
                   fmt::format("must be numbers below the depth {}", layers));
    }
    result.push_back(index.get<int64_t>());
  }
  return result;
}

}  // namespace

QwenVisionConfig read_qwen_vision(const ConfigFiles& files, int64_t hidden) {
  const ConfigSection config = files.top().object("vision_config");
  QwenVisionConfig result;
  // transformers 4.45 to 4.49 leave out what is the class's default.
  result.hidden = config.integer("hidden_size", 1, max_layer_width, 3584);
  result.layers = config.integer("depth", 1, 1024, 32);
  result.heads = config.integer("num_heads", 1, 4096, 16);
  result.intermediate = config.integer("intermediate_size", 1, max_layer_width, 3420);
  result.output = config.integer("out_hidden_size", 1, max_layer_width, hidden);
  const char* channels = config.has("in_channels") ? "in_channels" : "in_chans";
  result.channels = config.integer(channels, 3, 3, 3);
  result.patch = config.integer("patch_size", 1, 256, 14);
  result.temporal_patch = config.integer("temporal_patch_size", 1, 16, 2);
  result.merge = config.integer("spatial_merge_size", 1, 16, 2);
  result.window = config.integer("window_size", 1, 65536, 112);
  result.full_layers = read_full_layers(config, result.layers);
  result.tokens_per_second = config.number("tokens_per_second", 1e-3, 1e6, 4);
  if (result.output != hidden) {
    config.wrong("out_hidden_size",
                 fmt::format("is {} where the decoder has {}", result.output, hidden));
  }
  if (result.hidden % result.heads != 0 || (result.hidden / result.heads) % 4 != 0) {
    config.wrong("num_heads", "must give heads whose size is a multiple of 4");
  }
  if (result.window / result.merge / result.patch < 1) {
    config.wrong("window_size", "is smaller than one merged patch");
  }
  expect_text(config, "hidden_act", "silu", " here");
  return result;
}

}  // namespace kinora
