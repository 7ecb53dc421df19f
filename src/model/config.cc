#include "model/config.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/config_section.h"

namespace kinora {
namespace {

using Json = nlohmann::json;

constexpr int64_t max_width = 1 << 18;  // of any layer; the largest open models stay below 2^17
constexpr std::array families = {Family::qwen2_5_vl, Family::llava_onevision, Family::llama,
                                 Family::qwen2, Family::qwen3};

Json read_json(const FileSystem& files, const std::string& path) {
  Json content;
  try {
    content = Json::parse(files.read(path, int64_t{16} << 20));
  } catch (const Json::exception&) {
    throw Error(ErrorKind::bad_input, path + " is not valid JSON");
  }
  if (!content.is_object()) throw Error(ErrorKind::bad_input, path + " is not a JSON object");
  return content;
}

Family parse_family(const ConfigSection& config) {
  const std::string type = config.text("model_type", "");
  for (const Family family : families) {
    if (family_name(family) == type) return family;
  }
  std::string known;
  for (const Family family : families) {
    known += (known.empty() ? "" : ", ") + std::string(family_name(family));
  }
  config.unsupported("model_type",
                     fmt::format("is '{}', which kinora does not know; it knows {}", type, known));
}

// `rope_parameters` holds everything; before it there were `rope_theta` and `rope_scaling`.
RopeConfig read_rope(const ConfigSection& config, double default_theta, int64_t frequencies) {
  const bool joined = config.has("rope_parameters");
  const ConfigSection rope = config.object(joined ? "rope_parameters" : "rope_scaling");
  RopeConfig result;
  const ConfigSection& theta_section = rope.has("rope_theta") ? rope : config;
  result.theta = theta_section.number("rope_theta", 1, 1e15, default_theta);

  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type == "llama3") {
    RopeConfig::Llama3 llama3;
    llama3.factor = rope.number("factor", 1, 1e6);
    llama3.low_frequency_factor = rope.number("low_freq_factor", 1e-6, 1e6);
    llama3.high_frequency_factor = rope.number("high_freq_factor", 1e-6, 1e6);
    llama3.original_max_position = rope.number("original_max_position_embeddings", 1, 1e9);
    if (llama3.high_frequency_factor <= llama3.low_frequency_factor) {
      rope.wrong("high_freq_factor", "must be larger than low_freq_factor");
    }
    result.llama3 = llama3;
  } else if (type != "default" && type != "mrope") {
    rope.unsupported("rope_type",
                     fmt::format("is '{}'; kinora has default, mrope and llama3", type));
  }

  if (const Json* sections = rope.find("mrope_section")) {
    std::array<int64_t, 3> sizes{};
    int64_t sum = 0;
    bool good = sections->is_array() && sections->size() == 3;
    for (size_t i = 0; good && i < 3; ++i) {
      good = (*sections)[i].is_number_unsigned() && (*sections)[i].get<uint64_t>() <= 4096;
      if (good) sum += sizes[i] = (*sections)[i].get<int64_t>();
    }
    if (!good || sum != frequencies) {
      rope.wrong("mrope_section",
                 fmt::format("must be three numbers that add up to {}", frequencies));
    }
    result.sections = sizes;
  }
  return result;
}

void refuse_sliding_windows(const ConfigSection& config) {
  if (config.flag("use_sliding_window", false)) {
    config.unsupported("use_sliding_window", "is true; kinora has full attention only");
  }
  const Json* types = config.find("layer_types");
  if (types == nullptr || !types->is_array()) return;
  for (const Json& type : *types) {
    if (type != "full_attention") {
      config.unsupported("layer_types", "names layers that are not full_attention");
    }
  }
}

// `family` is that of the decoder: qwen2 inside LLaVA-OneVision.
DecoderConfig read_decoder(const ConfigSection& config, Family family) {
  DecoderConfig result;
  result.hidden = config.integer("hidden_size", 1, max_width);
  result.layers = config.integer("num_hidden_layers", 1, 1024);
  result.heads = config.integer("num_attention_heads", 1, 4096);
  result.kv_heads = config.integer("num_key_value_heads", 1, 4096, result.heads);
  result.intermediate = config.integer("intermediate_size", 1, 4 * max_width);
  result.vocabulary = config.integer("vocab_size", 1, 1 << 24);
  result.max_position = config.integer("max_position_embeddings", 1, INT32_MAX, 32768);
  result.norm_epsilon = static_cast<float>(config.number("rms_norm_eps", 1e-12, 0.1, 1e-6));
  if (result.heads % result.kv_heads != 0) {
    config.wrong("num_key_value_heads", fmt::format("is {}, which does not divide {} heads",
                                                    result.kv_heads, result.heads));
  }
  const bool own_size = config.has("head_dim") || family == Family::qwen3;
  if (!own_size && result.hidden % result.heads != 0) {
    config.wrong("num_attention_heads", fmt::format("is {}, which does not divide hidden_size {}",
                                                    result.heads, result.hidden));
  }
  result.head_size =
      own_size ? config.integer("head_dim", 2, 1024, 128) : result.hidden / result.heads;
  if (result.head_size % 2 != 0 || result.head_size > 1024) {
    config.wrong(config.has("head_dim") ? "head_dim" : "num_attention_heads",
                 fmt::format("gives heads of size {}; they must be even and at most 1024",
                             result.head_size));
  }
  if (const std::string act = config.text("hidden_act", "silu"); act != "silu") {
    config.unsupported("hidden_act", fmt::format("is '{}'; kinora has silu here", act));
  }
  if (config.flag("mlp_bias", false)) config.unsupported("mlp_bias", "is true");
  refuse_sliding_windows(config);

  const bool qwen2 = family == Family::qwen2 || family == Family::qwen2_5_vl;
  const bool attention_bias = !qwen2 && config.flag("attention_bias", false);
  result.qkv_bias = qwen2 || attention_bias;
  result.output_bias = attention_bias;
  result.qk_norm = family == Family::qwen3;
  result.rope = read_rope(config, family == Family::qwen2_5_vl ? 1e6 : 1e4, result.head_size / 2);
  if (family == Family::qwen2_5_vl && !result.rope.sections) {
    config.wrong("rope_scaling", "has no mrope_section");
  }
  return result;
}

std::vector<int64_t> read_full_layers(const ConfigSection& config, int64_t layers) {
  const Json* value = config.find("fullatt_block_indexes");
  if (value == nullptr) return {7, 15, 23, 31};
  std::vector<int64_t> result;
  if (!value->is_array()) config.wrong("fullatt_block_indexes", "is not a list");
  for (const Json& index : *value) {
    if (!index.is_number_unsigned() || index.get<uint64_t>() >= static_cast<uint64_t>(layers)) {
      config.wrong("fullatt_block_indexes",
                   fmt::format("must be numbers below the depth {}", layers));
    }
    result.push_back(index.get<int64_t>());
  }
  return result;
}

QwenVisionConfig read_qwen_vision(const ConfigSection& config, int64_t hidden) {
  QwenVisionConfig result;
  result.hidden = config.integer("hidden_size", 1, max_width);
  result.layers = config.integer("depth", 1, 1024);
  result.heads = config.integer("num_heads", 1, 4096);
  result.intermediate = config.integer("intermediate_size", 1, max_width);
  result.output = config.integer("out_hidden_size", 1, max_width, hidden);
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
  if (const std::string act = config.text("hidden_act", "silu"); act != "silu") {
    config.unsupported("hidden_act", fmt::format("is '{}'; kinora has silu here", act));
  }
  return result;
}

SiglipConfig read_siglip(const ConfigSection& config) {
  if (const std::string type = config.text("model_type", "siglip_vision_model");
      type != "siglip_vision_model") {
    config.unsupported("model_type", fmt::format("is '{}'; kinora has siglip_vision_model", type));
  }
  SiglipConfig result;
  result.hidden = config.integer("hidden_size", 1, max_width);
  result.layers = config.integer("num_hidden_layers", 1, 1024);
  result.heads = config.integer("num_attention_heads", 1, 4096);
  result.intermediate = config.integer("intermediate_size", 1, max_width);
  result.channels = config.integer("num_channels", 3, 3, 3);
  result.image = config.integer("image_size", 1, 8192);
  result.patch = config.integer("patch_size", 1, 256);
  result.norm_epsilon = static_cast<float>(config.number("layer_norm_eps", 1e-12, 0.1, 1e-6));
  if (result.patch > result.image) config.wrong("patch_size", "is larger than image_size");
  if (result.hidden % result.heads != 0) {
    config.wrong("num_attention_heads", "does not divide hidden_size");
  }
  if (const std::string act = config.text("hidden_act", "gelu_pytorch_tanh");
      act != "gelu_pytorch_tanh") {
    config.unsupported("hidden_act", fmt::format("is '{}'; kinora has gelu_pytorch_tanh", act));
  }
  return result;
}

LlavaConfig read_llava(const ConfigSection& config, const SiglipConfig& tower) {
  LlavaConfig result;
  const int64_t states = tower.layers + 1;  // the embeddings count as state 0
  const int64_t layer = config.integer("vision_feature_layer", -states, states - 1, -1);
  result.feature_layers = layer < 0 ? layer + states : layer;
  if (const std::string strategy = config.text("vision_feature_select_strategy", "full");
      strategy != "full") {
    config.unsupported("vision_feature_select_strategy",
                       fmt::format("is '{}'; kinora has full", strategy));
  }
  if (const std::string act = config.text("projector_hidden_act", "gelu"); act != "gelu") {
    config.unsupported("projector_hidden_act", fmt::format("is '{}'; kinora has gelu", act));
  }
  result.projector_bias = config.flag("multimodal_projector_bias", true);
  return result;
}

std::vector<int32_t> read_tokens(const ConfigSection& config, std::string_view key) {
  const Json* value = config.find(key);
  std::vector<int32_t> result;
  if (value == nullptr) return result;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t{INT32_MAX}) {
      config.wrong(key, "is not a token number or a list of them");
    }
    result.push_back(id.get<int32_t>());
  }
  return result;
}

GenerationDefaults read_generation(const ConfigSection& config) {
  GenerationDefaults result;
  result.repetition_penalty = config.number("repetition_penalty", 1e-3, 1e3, 1);
  if (!config.flag("do_sample", false)) return result;
  result.temperature = config.number("temperature", 0, 1e3, 1);
  result.top_k = config.integer("top_k", 0, 1 << 24, 50);  // 50 is Hugging Face's default
  result.top_p = config.number("top_p", 0, 1, 1);
  return result;
}

int32_t read_token(const ConfigSection& config, const char* key, const char* older_key) {
  const char* present = config.has(key) ? key : older_key;
  return static_cast<int32_t>(config.integer(present, 0, INT32_MAX));
}

}  // namespace

std::string_view family_name(Family family) {
  switch (family) {
    case Family::qwen2_5_vl:
      return "qwen2_5_vl";
    case Family::llava_onevision:
      return "llava_onevision";
    case Family::llama:
      return "llama";
    case Family::qwen2:
      return "qwen2";
    case Family::qwen3:
      return "qwen3";
  }
  return "?";
}

ModelConfig read_config(const FileSystem& files, const std::string& directory) {
  if (!files.is_directory(directory)) {
    throw Error(ErrorKind::not_found, fmt::format("there is no model directory {}", directory));
  }
  const std::string path = join_path(directory, "config.json");
  if (!files.is_file(path)) {
    throw Error(ErrorKind::not_found,
                fmt::format("{} has no config.json; is it a model directory?", directory));
  }
  const Json content = read_json(files, path);
  const ConfigSection top(content, nullptr, path, "");

  ModelConfig result;
  result.family = parse_family(top);
  const bool nested = top.has("text_config");
  const ConfigSection own_text = top.object("text_config");
  const ConfigSection text =
      nested ? ConfigSection(*top.find("text_config"), &content, path, "text_config.") : top;

  Family decoder_family = result.family;
  if (result.family == Family::llava_onevision) {
    const std::string type = own_text.text("model_type", "qwen2");
    if (type != "qwen2" && type != "llama" && type != "qwen3") {
      own_text.unsupported("model_type",
                           fmt::format("is '{}'; kinora has qwen2, qwen3 and llama", type));
    }
    decoder_family =
        type == "qwen2" ? Family::qwen2 : (type == "llama" ? Family::llama : Family::qwen3);
  }
  result.decoder = read_decoder(text, decoder_family);
  const bool top_tied =
      top.flag("tie_word_embeddings", own_text.flag("tie_word_embeddings", false));
  const bool text_tied = own_text.flag("tie_word_embeddings", top_tied);
  // Where the two levels contradict each other, as in some LLaVA directories, the files decide.
  if (text.has("tie_word_embeddings") && top_tied == text_tied) result.decoder.tied = top_tied;

  if (result.family == Family::qwen2_5_vl) {
    result.qwen_vision = read_qwen_vision(top.object("vision_config"), result.decoder.hidden);
    result.image_token = read_token(top, "image_token_id", "image_token_index");
    result.video_token = read_token(top, "video_token_id", "video_token_index");
  }
  if (result.family == Family::llava_onevision) {
    result.siglip = read_siglip(top.object("vision_config"));
    result.llava = read_llava(top, *result.siglip);
    result.image_token = read_token(top, "image_token_index", "image_token_id");
    result.video_token = read_token(top, "video_token_index", "video_token_id");
  }

  const std::string generation = join_path(directory, "generation_config.json");
  if (files.is_file(generation)) {
    const Json settings = read_json(files, generation);
    const ConfigSection section(settings, nullptr, generation, "");
    result.stop_tokens = read_tokens(section, "eos_token_id");
    result.generation = read_generation(section);
  }
  if (result.stop_tokens.empty()) result.stop_tokens = read_tokens(text, "eos_token_id");
  return result;
}

}  // namespace kinora
