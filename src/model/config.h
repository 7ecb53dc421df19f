// What config.json and generation_config.json of a model directory say, checked and in one form
// for every generation of Hugging Face files. Plain numbers: weights.cc takes shapes from here,
// the decoder and the vision towers their settings.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "model/generation_defaults.h"

namespace kinora {

enum class Family : uint8_t { qwen2_5_vl, llava_onevision, llama, qwen2, qwen3 };

std::string_view family_name(Family family);  // as `model_type` spells it

// Rotary positions. `llama3` changes the frequencies; `sections` turns on M-RoPE.
struct RopeConfig {
  struct Llama3 {
    double factor = 8;
    double low_frequency_factor = 1;
    double high_frequency_factor = 4;
    double original_max_position = 8192;
  };
  double theta = 10000;
  std::optional<Llama3> llama3;
  std::optional<std::array<int64_t, 3>> sections;  // of d/2 frequencies: temporal, height, width
};

struct DecoderConfig {
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t intermediate = 0;
  int64_t vocabulary = 0;
  int64_t max_position = 0;
  float norm_epsilon = 1e-6f;
  bool qkv_bias = false;
  bool output_bias = false;
  bool qk_norm = false;
  // Whether the output head is the embedding table; absent when the files decide.
  std::optional<bool> tied;
  RopeConfig rope;
};

// The vision tower of Qwen2.5-VL.
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

// The vision tower of LLaVA-OneVision.
struct SiglipConfig {
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t intermediate = 0;
  int64_t channels = 3;
  int64_t image = 384;  // pixels across and down
  int64_t patch = 14;
  float norm_epsilon = 1e-6f;

  int64_t grid() const { return image / patch; }  // patches across and down
};

// What joins SigLIP to the decoder. (Tiles, pooling and newlines: processor_llava.h.)
struct LlavaConfig {
  int64_t feature_layers = 0;  // how many tower layers run; the last one's output is projected
  bool projector_bias = true;
};

struct ModelConfig {
  Family family = Family::qwen2;
  DecoderConfig decoder;
  std::optional<QwenVisionConfig> qwen_vision;
  std::optional<SiglipConfig> siglip;
  std::optional<LlavaConfig> llava;
  int32_t image_token = -1;
  int32_t video_token = -1;
  std::vector<int32_t> stop_tokens;
  GenerationDefaults generation;
};

// Throws not_found when there is no config.json, unsupported for an architecture or a setting that
// kinora does not have, bad_input for numbers that are missing or make no sense.
ModelConfig read_config(const FileSystem& files, const std::string& directory);

}  // namespace kinora
