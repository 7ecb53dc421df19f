#include "model/families/qwen3_vl/weights.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "model/weights/gpu_weights.h"
#include "model/weights/random_weights.h"

namespace kinora {
namespace {

int64_t merged_width(const Qwen3VisionConfig& config) {
  return config.merge * config.merge * config.hidden;
}

}  // namespace

std::span<const TensorPrefix> qwen3_vision_prefixes() {
  static constexpr std::array prefixes = {TensorPrefix{"model.visual.", "model.visual."}};
  return prefixes;
}

Qwen3VisionWeights take_qwen3_vision(WeightsBinder& binder, const Qwen3VisionConfig& config) {
  const std::string prefix = "model.visual.";
  const int64_t hidden = config.hidden, merged = merged_width(config);
  Qwen3VisionWeights vision;
  vision.patch.weight = binder.take_patches(
      prefix + "patch_embed.proj.weight",
      Shape{hidden, config.channels, config.temporal_patch, config.patch, config.patch});
  vision.patch.bias = binder.take(prefix + "patch_embed.proj.bias", Shape{hidden});
  vision.positions = binder.take(prefix + "pos_embed.weight",
                                 Shape{config.position_side * config.position_side, hidden});
  for (int64_t index = 0; index < config.layers; ++index) {
    const std::string name = fmt::format("{}blocks.{}.", prefix, index);
    Qwen3VisionLayerWeights layer;
    layer.attention_norm = binder.take_norm(name + "norm1", hidden);
    layer.qkv = binder.take_linear(name + "attn.qkv", 3 * hidden, hidden, true);
    layer.output = binder.take_linear(name + "attn.proj", hidden, hidden, true);
    layer.mlp_norm = binder.take_norm(name + "norm2", hidden);
    layer.up = binder.take_linear(name + "mlp.linear_fc1", config.intermediate, hidden, true);
    layer.down = binder.take_linear(name + "mlp.linear_fc2", hidden, config.intermediate, true);
    vision.layers.push_back(std::move(layer));
  }
  const auto merger = [&](const std::string& name, int64_t norm_width) {
    return Qwen3MergerWeights{binder.take_norm(name + "norm", norm_width),
                              binder.take_linear(name + "linear_fc1", merged, merged, true),
                              binder.take_linear(name + "linear_fc2", config.output, merged, true)};
  };
  vision.merger = merger(prefix + "merger.", hidden);
  for (int64_t level = 0; level < config.levels(); ++level) {
    vision.deep_mergers.push_back(
        merger(fmt::format("{}deepstack_merger_list.{}.", prefix, level), merged));
  }
  return vision;
}

Qwen3VisionWeights on_gpu(const Context& context, const Qwen3VisionWeights& weights,
                          DType activations) {
  constexpr int64_t multiple = gpu_row_multiple;
  const auto norm = [&](const NormWeights& host) {
    return NormWeights{host.weight.to(context.device), host.bias.to(context.device)};
  };
  const auto merger = [&](const Qwen3MergerWeights& host) {
    return Qwen3MergerWeights{norm(host.norm), on_gpu(context, host.in, activations, activations),
                              on_gpu(context, host.out, activations, DType::f32)};
  };
  Qwen3VisionWeights there;
  there.patch = on_gpu(context, weights.patch, activations, DType::f32, 1, multiple);
  there.positions = weights.positions;
  for (const Qwen3VisionLayerWeights& layer : weights.layers) {
    Qwen3VisionLayerWeights moved;
    moved.attention_norm = norm(layer.attention_norm);
    moved.qkv = on_gpu(context, layer.qkv, activations, activations);
    // What is added to the residual stream, which is f32.
    moved.output = on_gpu(context, layer.output, activations, DType::f32);
    moved.mlp_norm = norm(layer.mlp_norm);
    moved.up = on_gpu(context, layer.up, activations, activations, multiple);
    moved.down = on_gpu(context, layer.down, activations, DType::f32, 1, multiple);
    there.layers.push_back(std::move(moved));
  }
  there.merger = merger(weights.merger);
  for (const Qwen3MergerWeights& deep : weights.deep_mergers) {
    there.deep_mergers.push_back(merger(deep));
  }
  return there;
}

Qwen3VisionWeights random_qwen3_vision(const Context& context, const Qwen3VisionConfig& config,
                                       DType type) {
  WeightMaker make(context, type);
  const int64_t hidden = config.hidden, merged = merged_width(config);
  const auto merger = [&](int64_t norm_width) {
    return Qwen3MergerWeights{make.norm(norm_width), make.linear(merged, merged, true),
                              make.linear(config.output, merged, true)};
  };
  Qwen3VisionWeights weights;
  weights.patch = make.linear(
      hidden, config.channels * config.temporal_patch * config.patch * config.patch, true);
  weights.positions =
      make.matrix(config.position_side * config.position_side, hidden).to(Device::cpu());
  for (int64_t i = 0; i < config.layers; ++i) {
    Qwen3VisionLayerWeights layer;
    layer.attention_norm = make.norm(hidden);
    layer.qkv = make.linear(3 * hidden, hidden, true);
    layer.output = make.linear(hidden, hidden, true);
    layer.mlp_norm = make.norm(hidden);
    layer.up = make.linear(config.intermediate, hidden, true);
    layer.down = make.linear(hidden, config.intermediate, true);
    weights.layers.push_back(std::move(layer));
  }
  weights.merger = merger(hidden);
  for (int64_t level = 0; level < config.levels(); ++level) {
    weights.deep_mergers.push_back(merger(merged));
  }
  return weights;
}

}  // namespace kinora
