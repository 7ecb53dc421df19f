// The weights of Qwen3-VL's vision tower: bound, moved to a GPU, or random.
#pragma once

#include <span>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"
#include "model/families/qwen3_vl/config.h"
#include "model/weights/weights.h"
#include "model/weights/weights_binder.h"

namespace kinora {

struct Qwen3VisionLayerWeights {
  NormWeights attention_norm;  // [hidden]
  LinearWeights qkv;           // [3 × hidden, hidden]
  LinearWeights output;        // [hidden, hidden]
  NormWeights mlp_norm;        // [hidden]
  LinearWeights up;            // [intermediate, hidden]
  LinearWeights down;          // [hidden, intermediate]
};

// Joins merge² patches into one token.
struct Qwen3MergerWeights {
  NormWeights norm;   // [hidden], of DeepStack [merge² × hidden]
  LinearWeights in;   // [merge² × hidden, merge² × hidden]
  LinearWeights out;  // [output, merge² × hidden]
};

struct Qwen3VisionWeights {
  LinearWeights patch;  // [hidden, channels × temporal patch × patch × patch]
  Tensor positions;     // [position side², hidden], on the CPU always
  std::vector<Qwen3VisionLayerWeights> layers;
  Qwen3MergerWeights merger;
  std::vector<Qwen3MergerWeights> deep_mergers;  // one for each level
};

// How the names of the tower's tensors begin: what a binder of this family needs.
std::span<const TensorPrefix> qwen3_vision_prefixes();

Qwen3VisionWeights take_qwen3_vision(WeightsBinder& binder, const Qwen3VisionConfig& config);

Qwen3VisionWeights on_gpu(const Context& context, const Qwen3VisionWeights& weights,
                          DType activations);

Qwen3VisionWeights random_qwen3_vision(const Context& context, const Qwen3VisionConfig& config,
                                       DType type);

}  // namespace kinora
