// The weights of Qwen2.5-VL's vision tower: bound, moved to a GPU, or random.
#pragma once

#include <span>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"
#include "model/families/qwen2_5_vl/config.h"
#include "model/weights/weights.h"
#include "model/weights/weights_binder.h"

namespace kinora {

struct QwenVisionLayerWeights {
  Tensor attention_norm;  // [hidden]
  LinearWeights qkv;      // [3 × hidden, hidden]
  LinearWeights output;   // [hidden, hidden]
  Tensor mlp_norm;        // [hidden]
  LinearWeights gate;     // [intermediate, hidden]
  LinearWeights up;       // the same
  LinearWeights gate_up;  // both, one under the other: on a GPU, where the two above are undefined
  LinearWeights down;     // [hidden, intermediate]
};

struct QwenVisionWeights {
  Tensor patch;  // [hidden, channels × temporal patch × patch × patch]
  std::vector<QwenVisionLayerWeights> layers;
  Tensor merger_norm;        // [hidden]
  LinearWeights merger_in;   // [merge² × hidden, merge² × hidden]
  LinearWeights merger_out;  // [output, merge² × hidden]
};

// How the names of the tower's tensors begin: what a binder of this family needs.
std::span<const TensorPrefix> qwen_vision_prefixes();

QwenVisionWeights take_qwen_vision(WeightsBinder& binder, const QwenVisionConfig& config);

QwenVisionWeights on_gpu(const Context& context, const QwenVisionWeights& weights,
                         DType activations);

QwenVisionWeights random_qwen_vision(const Context& context, const QwenVisionConfig& config,
                                     DType type);

}  // namespace kinora
