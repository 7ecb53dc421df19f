// What every family's config.json and generation_config.json say, checked and in one form for every
// generation of Hugging Face files: the decoder's sizes, the tokens that stand for pictures and end
// an answer, the authors' sampling. Plain numbers; what only one family has is read in its folder.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "model/generation_defaults.h"

namespace kinora {

class ConfigFiles;
class ConfigSection;

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
  // Height and width take every third frequency (h from the second, w from the third on), as many
  // as their section says; time takes the rest. Else the sections lie one after another.
  bool interleaved = false;
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
  // What only published drafts have: a layer whose input goes unnormed, and one whose queries, keys
  // and values are made of a second row of each token as well, Sequence::beside.
  bool input_norm = true;
  bool beside = false;
  // Whether the output head is the embedding table; absent when the files decide.
  std::optional<bool> tied;
  RopeConfig rope;
};

// Sizes of Hugging Face's class, which some of its versions leave out of a nested `text_config`.
struct DecoderDefaults {
  int64_t hidden;
  int64_t layers;
  int64_t heads;
  std::optional<int64_t> kv_heads;  // as many as heads where absent
  int64_t intermediate;
  int64_t vocabulary;
};

// What a family's decoder is by nature and a config.json does not say.
struct DecoderTraits {
  // Biases of query, key and value and none of the output. Else `attention_bias` decides about all.
  bool qkv_bias = false;
  bool qk_norm = false;
  std::optional<int64_t> head_size = {};  // where `head_dim` is absent; else hidden size / heads
  double rope_theta = 1e4;                // where the config gives none
  bool mrope = false;  // positions in time, height and width: `mrope_section` is needed
  bool mrope_interleaved = false;
  std::optional<DecoderDefaults> defaults = {};
};

struct ModelConfig {
  DecoderConfig decoder;
  int32_t image_token = -1;  // −1: a text model
  int32_t video_token = -1;
  // Rows besides its embedding that a visual token brings: level l is added to its hidden row after
  // layer l (DeepStack).
  int64_t deep_levels = 0;
  std::vector<int32_t> stop_tokens;
  GenerationDefaults generation;
};

// The largest width of any layer that is believed; the largest open models stay below 2^17.
constexpr int64_t max_layer_width = 1 << 18;

// All but the visual tokens. Throws unsupported for a setting that kinora does not have, bad_input
// for numbers that are missing or make no sense.
ModelConfig read_config(const ConfigFiles& files, const DecoderTraits& traits);

// A token number under either name; the second is the older or rarer one.
int32_t read_token(const ConfigSection& config, const char* key, const char* other_key);

// Throws unsupported unless the text at `key`, or `known` where it is absent, is `known`. `where`
// follows it in the message: "; kinora has silu here".
void expect_text(const ConfigSection& config, const char* key, const char* known,
                 const char* where = "");

}  // namespace kinora
