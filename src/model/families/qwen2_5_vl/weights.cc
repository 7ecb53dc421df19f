#include "model/families/qwen2_5_vl/weights.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "model/weights/gpu_weights.h"
#include "model/weights/random_weights.h"

namespace kinora {

std::span<const TensorPrefix> qwen_vision_prefixes() {
  static constexpr std::array prefixes = {TensorPrefix{"model.visual.", "model.visual."},
                                          TensorPrefix{"visual.", "model.visual."}};
  return prefixes;
}

QwenVisionWeights take_qwen_vision(WeightsBinder& binder, const QwenVisionConfig& config) {
  const std::string prefix = "model.visual.";
  const int64_t hidden = config.hidden;
  QwenVisionWeights vision;
  vision.patch = binder.take_patches(
      prefix + "patch_embed.proj.weight",
      Shape{hidden, config.channels, config.temporal_patch, config.patch, config.patch});
  for (int64_t index = 0; index < config.layers; ++index) {
    const std::string name = fmt::format("{}blocks.{}.", prefix, index);
    QwenVisionLayerWeights layer;
    layer.attention_norm = binder.take(name + "norm1.weight", Shape{hidden});
    layer.qkv = binder.take_linear(name + "attn.qkv", 3 * hidden, hidden, true);
    layer.output = binder.take_linear(name + "attn.proj", hidden, hidden, true);
    layer.mlp_norm = binder.take(name + "norm2.weight", Shape{hidden});
    layer.gate = binder.take_linear(name + "mlp.gate_proj", config.intermediate, hidden, true);
    layer.up = binder.take_linear(name + "mlp.up_proj", config.intermediate, hidden, true);
    layer.down = binder.take_linear(name + "mlp.down_proj", hidden, config.intermediate, true);
    vision.layers.push_back(layer);
  }
  const int64_t merged = config.merge * config.merge * hidden;
  vision.merger_norm = binder.take(prefix + "merger.ln_q.weight", Shape{hidden});
  vision.merger_in = binder.take_linear(prefix + "merger.mlp.0", merged, merged, true);
  vision.merger_out = binder.take_linear(prefix + "merger.mlp.2", config.output, merged, true);
  return vision;
}

QwenVisionWeights on_gpu(const Context& context, const QwenVisionWeights& weights,
                         DType activations) {
  constexpr int64_t multiple = gpu_row_multiple;
  QwenVisionWeights there;
  there.patch = stacked(context, {&weights.patch}, activations, 1, multiple);
  for (const QwenVisionLayerWeights& layer : weights.layers) {
    QwenVisionLayerWeights moved;
    moved.attention_norm = layer.attention_norm.to(context.device);
    moved.qkv = on_gpu(context, layer.qkv, activations, activations);
    // What is added to the residual stream, which is f32.
    moved.output = on_gpu(context, layer.output, activations, DType::f32);
    moved.mlp_norm = layer.mlp_norm.to(context.device);
    moved.gate_up.weight =
        stacked(context, {&layer.gate.weight, &layer.up.weight}, activations, multiple);
    moved.gate_up.bias = joined(context, {&layer.gate.bias, &layer.up.bias}, activations, multiple);
    moved.down = on_gpu(context, layer.down, activations, DType::f32, 1, multiple);
    there.layers.push_back(moved);
  }
  there.merger_norm = weights.merger_norm.to(context.device);
  there.merger_in = on_gpu(context, weights.merger_in, activations, activations);
  there.merger_out = on_gpu(context, weights.merger_out, activations, DType::f32);
  return there;
}

QwenVisionWeights random_qwen_vision(const Context& context, const QwenVisionConfig& config,
                                     DType type) {
  WeightMaker make(context, type);
  const int64_t hidden = config.hidden, merged = config.merge * config.merge * hidden;
  QwenVisionWeights weights;
  weights.patch =
      make.matrix(hidden, config.channels * config.temporal_patch * config.patch * config.patch);
  for (int64_t i = 0; i < config.layers; ++i) {
    QwenVisionLayerWeights layer;
    layer.attention_norm = make.vector(hidden);
    layer.qkv = make.linear(3 * hidden, hidden, true);
    layer.output = make.linear(hidden, hidden, true);
    layer.mlp_norm = make.vector(hidden);
    layer.gate = make.linear(config.intermediate, hidden, true);
    layer.up = make.linear(config.intermediate, hidden, true);
    layer.down = make.linear(hidden, config.intermediate, true);
    weights.layers.push_back(std::move(layer));
  }
  weights.merger_norm = make.vector(hidden);
  weights.merger_in = make.linear(merged, merged, true);
  weights.merger_out = make.linear(config.output, merged, true);
  return weights;
}

}  // namespace kinora
