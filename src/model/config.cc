#include "model/config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "model/config_files.h"

namespace kinora {
namespace {

using Json = nlohmann::json;

// `rope_parameters` holds everything; before it there were `rope_theta` and `rope_scaling`.
RopeConfig read_rope(const ConfigSection& config, const DecoderTraits& traits,
                     int64_t frequencies) {
  const bool joined = config.has("rope_parameters");
  const ConfigSection rope = config.object(joined ? "rope_parameters" : "rope_scaling");
  RopeConfig result;
  const ConfigSection& theta_section = rope.has("rope_theta") ? rope : config;
  result.theta = theta_section.number("rope_theta", 1, 1e15, traits.rope_theta);

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
    result.interleaved = traits.mrope_interleaved;
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

// `nested`: the settings stand in an object of their own.
DecoderConfig read_decoder(const ConfigSection& config, const DecoderTraits& traits, bool nested) {
  DecoderConfig result;
  const auto usual = [&](auto member) -> std::optional<int64_t> {
    if (!nested || !traits.defaults) return {};
    return std::optional<int64_t>((*traits.defaults).*member);
  };
  result.hidden =
      config.integer("hidden_size", 1, max_layer_width, usual(&DecoderDefaults::hidden));
  result.layers = config.integer("num_hidden_layers", 1, 1024, usual(&DecoderDefaults::layers));
  result.heads = config.integer("num_attention_heads", 1, 4096, usual(&DecoderDefaults::heads));
  result.kv_heads = config.integer("num_key_value_heads", 1, 4096,
                                   usual(&DecoderDefaults::kv_heads).value_or(result.heads));
  result.intermediate = config.integer("intermediate_size", 1, 4 * max_layer_width,
                                       usual(&DecoderDefaults::intermediate));
  result.vocabulary = config.integer("vocab_size", 1, 1 << 24, usual(&DecoderDefaults::vocabulary));
  result.max_position = config.integer("max_position_embeddings", 1, INT32_MAX, 32768);
  result.norm_epsilon = static_cast<float>(config.number("rms_norm_eps", 1e-12, 0.1, 1e-6));
  if (result.heads % result.kv_heads != 0) {
    config.wrong("num_key_value_heads", fmt::format("is {}, which does not divide {} heads",
                                                    result.kv_heads, result.heads));
  }
  const bool own_size = config.has("head_dim") || traits.head_size;
  if (!own_size && result.hidden % result.heads != 0) {
    config.wrong("num_attention_heads", fmt::format("is {}, which does not divide hidden_size {}",
                                                    result.heads, result.hidden));
  }
  result.head_size = own_size ? config.integer("head_dim", 2, 1024, traits.head_size)
                              : result.hidden / result.heads;
  if (result.head_size % 2 != 0 || result.head_size > 1024) {
    config.wrong(config.has("head_dim") ? "head_dim" : "num_attention_heads",
                 fmt::format("gives heads of size {}; they must be even and at most 1024",
                             result.head_size));
  }
  expect_text(config, "hidden_act", "silu", " here");
  if (config.flag("mlp_bias", false)) config.unsupported("mlp_bias", "is true");
  refuse_sliding_windows(config);

  const bool attention_bias = !traits.qkv_bias && config.flag("attention_bias", false);
  result.qkv_bias = traits.qkv_bias || attention_bias;
  result.output_bias = attention_bias;
  result.qk_norm = traits.qk_norm;
  result.rope = read_rope(config, traits, result.head_size / 2);
  if (traits.mrope && !result.rope.sections) config.wrong("rope_scaling", "has no mrope_section");
  return result;
}

// Where the two levels contradict each other, as in some LLaVA directories, the files decide.
std::optional<bool> read_tied(const ConfigFiles& files) {
  const ConfigSection own_text = files.own_text();
  const bool top =
      files.top().flag("tie_word_embeddings", own_text.flag("tie_word_embeddings", false));
  const bool text = own_text.flag("tie_word_embeddings", top);
  if (!files.text().has("tie_word_embeddings") || top != text) return {};
  return top;
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

}  // namespace

ModelConfig read_config(const ConfigFiles& files, const DecoderTraits& traits) {
  ModelConfig result;
  result.decoder = read_decoder(files.text(), traits, files.top().has("text_config"));
  result.decoder.tied = read_tied(files);
  if (const std::optional<ConfigSection> generation = files.generation()) {
    result.stop_tokens = read_tokens(*generation, "eos_token_id");
    result.generation = read_generation(*generation);
  }
  if (result.stop_tokens.empty()) result.stop_tokens = read_tokens(files.text(), "eos_token_id");
  return result;
}

int32_t read_token(const ConfigSection& config, const char* key, const char* other_key) {
  const char* present = config.has(key) ? key : other_key;
  return static_cast<int32_t>(config.integer(present, 0, INT32_MAX));
}

void expect_text(const ConfigSection& config, const char* key, const char* known,
                 const char* where) {
  const std::string text = config.text(key, known);
  if (text == known) return;
  config.unsupported(key, fmt::format("is '{}'; kinora has {}{}", text, known, where));
}

}  // namespace kinora
