// What LLaVA-OneVision's config.json says besides the decoder: the SigLIP tower, and what joins it
// to the decoder. (Tiles, pooling and newlines: processor.h.)
#pragma once

#include <cstdint>

#include "model/config.h"

namespace kinora {

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

struct LlavaConfig {
  SiglipConfig tower;
  int64_t feature_layers = 0;  // how many tower layers run; the last one's output is projected
  bool projector_bias = true;
};

// Throws as read_config does.
LlavaConfig read_llava(const ConfigFiles& files);

// The decoder is that of a text family, by text_config's own model_type.
DecoderTraits llava_decoder(const ConfigFiles& files);

}  // namespace kinora
