#include "model/families/llava_onevision/config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "model/config_files.h"
#include "model/families/llama/llama.h"
#include "model/families/qwen2/qwen2.h"
#include "model/families/qwen3/qwen3.h"

namespace kinora {
namespace {

SiglipConfig read_siglip(const ConfigSection& config) {
  expect_text(config, "model_type", "siglip_vision_model");
  // Keys that are left out have the values of Hugging Face's class.
  SiglipConfig result;
  result.hidden = config.integer("hidden_size", 1, max_layer_width, 768);
  result.layers = config.integer("num_hidden_layers", 1, 1024, 12);
  result.heads = config.integer("num_attention_heads", 1, 4096, 12);
  result.intermediate = config.integer("intermediate_size", 1, max_layer_width, 3072);
  result.channels = config.integer("num_channels", 3, 3, 3);
  result.image = config.integer("image_size", 1, 8192, 224);
  result.patch = config.integer("patch_size", 1, 256, 16);
  result.norm_epsilon = static_cast<float>(config.number("layer_norm_eps", 1e-12, 0.1, 1e-6));
  if (result.patch > result.image) config.wrong("patch_size", "is larger than image_size");
  if (result.hidden % result.heads != 0) {
    config.wrong("num_attention_heads", "does not divide hidden_size");
  }
  expect_text(config, "hidden_act", "gelu_pytorch_tanh");
  return result;
}

// A list joins the states of several layers; of one it means that layer.
int64_t read_feature_layer(const ConfigSection& config, int64_t states) {
  const char* key = "vision_feature_layer";
  const nlohmann::json* value = config.find(key);
  if (value == nullptr || !value->is_array()) return config.integer(key, -states, states - 1, -1);
  if (value->size() != 1) {
    config.unsupported(key, fmt::format("is a list of {} layers; kinora has one", value->size()));
  }
  const nlohmann::json& only = (*value)[0];
  if (!only.is_number_integer() || only < -states || only >= states) {
    config.wrong(key, "is not the number of a layer");
  }
  return only.get<int64_t>();
}

}  // namespace

LlavaConfig read_llava(const ConfigFiles& files) {
  const ConfigSection config = files.top();
  LlavaConfig result;
  result.tower = read_siglip(config.object("vision_config"));
  const int64_t states = result.tower.layers + 1;  // the embeddings count as state 0
  const int64_t layer = read_feature_layer(config, states);
  result.feature_layers = layer < 0 ? layer + states : layer;
  expect_text(config, "vision_feature_select_strategy", "full");
  expect_text(config, "projector_hidden_act", "gelu");
  result.projector_bias = config.flag("multimodal_projector_bias", true);
  return result;
}

DecoderTraits llava_decoder(const ConfigFiles& files) {
  const ConfigSection text = files.own_text();
  const std::string type = text.text("model_type", "qwen2");
  if (type == "qwen2") return qwen2_decoder;
  if (type == "qwen3") return qwen3_decoder;
  if (type == "llama") return llama_decoder;
  text.unsupported("model_type", fmt::format("is '{}'; kinora has qwen2, qwen3 and llama", type));
}

}  // namespace kinora
