#include "model/families/llava_onevision/weights.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "model/weights/gpu_weights.h"
#include "model/weights/random_weights.h"

namespace kinora {
namespace {

SiglipWeights take_siglip(WeightsBinder& binder, const SiglipConfig& config) {
  const std::string prefix = "model.vision_tower.vision_model.";
  const int64_t hidden = config.hidden;
  SiglipWeights tower;
  tower.patch.weight =
      binder.take_patches(prefix + "embeddings.patch_embedding.weight",
                          Shape{hidden, config.channels, config.patch, config.patch});
  tower.patch.bias = binder.take(prefix + "embeddings.patch_embedding.bias", Shape{hidden});
  tower.positions = binder.take(prefix + "embeddings.position_embedding.weight",
                                Shape{config.grid() * config.grid(), hidden});
  for (int64_t index = 0; index < config.layers; ++index) {
    const std::string name = fmt::format("{}encoder.layers.{}.", prefix, index);
    SiglipLayerWeights layer;
    layer.attention_norm = binder.take_norm(name + "layer_norm1", hidden);
    layer.query = binder.take_linear(name + "self_attn.q_proj", hidden, hidden, true);
    layer.key = binder.take_linear(name + "self_attn.k_proj", hidden, hidden, true);
    layer.value = binder.take_linear(name + "self_attn.v_proj", hidden, hidden, true);
    layer.output = binder.take_linear(name + "self_attn.out_proj", hidden, hidden, true);
    layer.mlp_norm = binder.take_norm(name + "layer_norm2", hidden);
    layer.up = binder.take_linear(name + "mlp.fc1", config.intermediate, hidden, true);
    layer.down = binder.take_linear(name + "mlp.fc2", hidden, config.intermediate, true);
    tower.layers.push_back(layer);
  }
  // Features are taken before the last norm and the pooling head.
  binder.pass_over(prefix + "post_layernorm.weight");
  binder.pass_over(prefix + "post_layernorm.bias");
  for (const char* name :
       {"probe", "attention.in_proj_weight", "attention.in_proj_bias", "attention.out_proj.weight",
        "attention.out_proj.bias", "layernorm.weight", "layernorm.bias", "mlp.fc1.weight",
        "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"}) {
    binder.pass_over(prefix + "head." + name);
  }
  return tower;
}

}  // namespace

std::span<const TensorPrefix> llava_prefixes() {
  static constexpr std::array prefixes = {
      TensorPrefix{"model.vision_tower.", "model.vision_tower."},
      TensorPrefix{"vision_tower.", "model.vision_tower."},
      TensorPrefix{"model.multi_modal_projector.", "model.multi_modal_projector."},
      TensorPrefix{"multi_modal_projector.", "model.multi_modal_projector."},
      TensorPrefix{"model.image_newline", "model.image_newline"},
      TensorPrefix{"image_newline", "model.image_newline"},
  };
  return prefixes;
}

LlavaWeights take_llava(WeightsBinder& binder, const LlavaConfig& config, int64_t hidden) {
  const std::string prefix = "model.multi_modal_projector.";
  const bool bias = config.projector_bias;
  LlavaWeights llava;
  llava.tower = take_siglip(binder, config.tower);
  llava.projector_in = binder.take_linear(prefix + "linear_1", hidden, config.tower.hidden, bias);
  llava.projector_out = binder.take_linear(prefix + "linear_2", hidden, hidden, bias);
  llava.newline = binder.take("model.image_newline", Shape{hidden});
  return llava;
}

SiglipWeights on_gpu(const Context& context, const SiglipWeights& weights, DType activations) {
  constexpr int64_t multiple = gpu_row_multiple;
  SiglipWeights there;
  there.patch = on_gpu(context, weights.patch, activations, DType::f32, 1, multiple);
  there.positions = weights.positions.to(context.device);
  for (const SiglipLayerWeights& layer : weights.layers) {
    SiglipLayerWeights moved;
    const auto norm = [&](const NormWeights& host) {
      return NormWeights{host.weight.to(context.device), host.bias.to(context.device)};
    };
    moved.attention_norm = norm(layer.attention_norm);
    moved.query = on_gpu(context, layer.query, activations, activations);
    moved.key = on_gpu(context, layer.key, activations, activations);
    moved.value = on_gpu(context, layer.value, activations, activations);
    moved.output = on_gpu(context, layer.output, activations, DType::f32);
    moved.mlp_norm = norm(layer.mlp_norm);
    moved.up = on_gpu(context, layer.up, activations, activations, multiple);
    moved.down = on_gpu(context, layer.down, activations, DType::f32, 1, multiple);
    there.layers.push_back(moved);
  }
  return there;
}

SiglipWeights random_siglip(const Context& context, const SiglipConfig& config, DType type) {
  WeightMaker make(context, type);
  const int64_t hidden = config.hidden;
  SiglipWeights weights;
  weights.patch = make.linear(hidden, config.channels * config.patch * config.patch, true);
  weights.positions = make.matrix(config.grid() * config.grid(), hidden);
  for (int64_t i = 0; i < config.layers; ++i) {
    SiglipLayerWeights layer;
    layer.attention_norm = make.norm(hidden);
    layer.query = make.linear(hidden, hidden, true);
    layer.key = make.linear(hidden, hidden, true);
    layer.value = make.linear(hidden, hidden, true);
    layer.output = make.linear(hidden, hidden, true);
    layer.mlp_norm = make.norm(hidden);
    layer.up = make.linear(config.intermediate, hidden, true);
    layer.down = make.linear(hidden, config.intermediate, true);
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

}  // namespace kinora
