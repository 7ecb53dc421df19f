// The weights of LLaVA-OneVision besides the decoder's: the SigLIP tower and the projector.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"
#include "model/families/llava_onevision/config.h"
#include "model/weights/weights.h"
#include "model/weights/weights_binder.h"

namespace kinora {

struct SiglipLayerWeights {
  NormWeights attention_norm;  // [hidden]
  LinearWeights query;         // [hidden, hidden]
  LinearWeights key;
  LinearWeights value;
  LinearWeights output;
  NormWeights mlp_norm;
  LinearWeights up;    // [intermediate, hidden]
  LinearWeights down;  // [hidden, intermediate]
};

struct SiglipWeights {
  LinearWeights patch;  // [hidden, channels × patch × patch]
  Tensor positions;     // [grid², hidden]
  std::vector<SiglipLayerWeights> layers;
};

struct LlavaWeights {
  SiglipWeights tower;
  LinearWeights projector_in;   // [decoder hidden, tower hidden]
  LinearWeights projector_out;  // [decoder hidden, decoder hidden]
  Tensor newline;               // [decoder hidden]
};

// How the names of these tensors begin: what a binder of this family needs.
std::span<const TensorPrefix> llava_prefixes();

// `hidden` is the decoder's.
LlavaWeights take_llava(WeightsBinder& binder, const LlavaConfig& config, int64_t hidden);

SiglipWeights on_gpu(const Context& context, const SiglipWeights& weights, DType activations);

SiglipWeights random_siglip(const Context& context, const SiglipConfig& config, DType type);

}  // namespace kinora
