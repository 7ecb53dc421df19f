#include "model/weights/weights.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "model/weights/weights_binder.h"

namespace kinora {
namespace {

LinearWeights take_linear(WeightsBinder& binder, const std::string& name, int64_t out, int64_t in,
                          bool bias) {
  LinearWeights linear;
  linear.weight = binder.take(name + ".weight", Shape{out, in});
  if (bias) linear.bias = binder.take(name + ".bias", Shape{out});
  return linear;
}

NormWeights take_norm(WeightsBinder& binder, const std::string& name, int64_t width) {
  return {binder.take(name + ".weight", Shape{width}), binder.take(name + ".bias", Shape{width})};
}

// A convolution whose stride is its size is a product of flattened patches.
Tensor flattened(const Tensor& convolution) {
  if (!convolution.defined()) return {};
  const int64_t out = convolution.size(0);
  return convolution.reshaped(Shape{out, out == 0 ? 0 : convolution.elements() / out});
}

DecoderLayerWeights take_decoder_layer(WeightsBinder& binder, const DecoderConfig& config,
                                       const std::string& name) {
  const int64_t query = config.heads * config.head_size;
  const int64_t key = config.kv_heads * config.head_size;
  const std::string attention = name + "self_attn.";
  DecoderLayerWeights layer;
  layer.input_norm = binder.take(name + "input_layernorm.weight", Shape{config.hidden});
  layer.query = take_linear(binder, attention + "q_proj", query, config.hidden, config.qkv_bias);
  layer.key = take_linear(binder, attention + "k_proj", key, config.hidden, config.qkv_bias);
  layer.value = take_linear(binder, attention + "v_proj", key, config.hidden, config.qkv_bias);
  layer.output =
      take_linear(binder, attention + "o_proj", config.hidden, query, config.output_bias);
  if (config.qk_norm) {
    layer.query_norm = binder.take(attention + "q_norm.weight", Shape{config.head_size});
    layer.key_norm = binder.take(attention + "k_norm.weight", Shape{config.head_size});
  }
  layer.post_norm = binder.take(name + "post_attention_layernorm.weight", Shape{config.hidden});
  const Shape wide{config.intermediate, config.hidden};
  layer.gate = binder.take(name + "mlp.gate_proj.weight", wide);
  layer.up = binder.take(name + "mlp.up_proj.weight", wide);
  layer.down =
      binder.take(name + "mlp.down_proj.weight", Shape{config.hidden, config.intermediate});
  return layer;
}

DecoderWeights take_decoder(WeightsBinder& binder, const DecoderConfig& config) {
  const std::string prefix = "model.language_model.";
  const Shape table{config.vocabulary, config.hidden};
  DecoderWeights decoder;
  decoder.embeddings = binder.take(prefix + "embed_tokens.weight", table);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    decoder.layers.push_back(
        take_decoder_layer(binder, config, fmt::format("{}layers.{}.", prefix, layer)));
  }
  decoder.norm = binder.take(prefix + "norm.weight", Shape{config.hidden});
  const bool tied = config.tied.value_or(!binder.has("lm_head.weight"));
  if (tied) {
    // Some exporters write the shared table a second time.
    binder.pass_over("lm_head.weight");
    decoder.head = decoder.embeddings;
  } else {
    decoder.head = binder.take("lm_head.weight", table);
  }
  return decoder;
}

QwenVisionWeights take_qwen_vision(WeightsBinder& binder, const QwenVisionConfig& config) {
  const std::string prefix = "model.visual.";
  const int64_t hidden = config.hidden;
  QwenVisionWeights vision;
  vision.patch = flattened(binder.take(
      prefix + "patch_embed.proj.weight",
      Shape{hidden, config.channels, config.temporal_patch, config.patch, config.patch}));
  for (int64_t index = 0; index < config.layers; ++index) {
    const std::string name = fmt::format("{}blocks.{}.", prefix, index);
    QwenVisionLayerWeights layer;
    layer.attention_norm = binder.take(name + "norm1.weight", Shape{hidden});
    layer.qkv = take_linear(binder, name + "attn.qkv", 3 * hidden, hidden, true);
    layer.output = take_linear(binder, name + "attn.proj", hidden, hidden, true);
    layer.mlp_norm = binder.take(name + "norm2.weight", Shape{hidden});
    layer.gate = take_linear(binder, name + "mlp.gate_proj", config.intermediate, hidden, true);
    layer.up = take_linear(binder, name + "mlp.up_proj", config.intermediate, hidden, true);
    layer.down = take_linear(binder, name + "mlp.down_proj", hidden, config.intermediate, true);
    vision.layers.push_back(layer);
  }
  const int64_t merged = config.merge * config.merge * hidden;
  vision.merger_norm = binder.take(prefix + "merger.ln_q.weight", Shape{hidden});
  vision.merger_in = take_linear(binder, prefix + "merger.mlp.0", merged, merged, true);
  vision.merger_out = take_linear(binder, prefix + "merger.mlp.2", config.output, merged, true);
  return vision;
}

SiglipWeights take_siglip(WeightsBinder& binder, const SiglipConfig& config) {
  const std::string prefix = "model.vision_tower.vision_model.";
  const int64_t hidden = config.hidden;
  SiglipWeights tower;
  tower.patch.weight =
      flattened(binder.take(prefix + "embeddings.patch_embedding.weight",
                            Shape{hidden, config.channels, config.patch, config.patch}));
  tower.patch.bias = binder.take(prefix + "embeddings.patch_embedding.bias", Shape{hidden});
  tower.positions = binder.take(prefix + "embeddings.position_embedding.weight",
                                Shape{config.grid() * config.grid(), hidden});
  for (int64_t index = 0; index < config.layers; ++index) {
    const std::string name = fmt::format("{}encoder.layers.{}.", prefix, index);
    SiglipLayerWeights layer;
    layer.attention_norm = take_norm(binder, name + "layer_norm1", hidden);
    layer.query = take_linear(binder, name + "self_attn.q_proj", hidden, hidden, true);
    layer.key = take_linear(binder, name + "self_attn.k_proj", hidden, hidden, true);
    layer.value = take_linear(binder, name + "self_attn.v_proj", hidden, hidden, true);
    layer.output = take_linear(binder, name + "self_attn.out_proj", hidden, hidden, true);
    layer.mlp_norm = take_norm(binder, name + "layer_norm2", hidden);
    layer.up = take_linear(binder, name + "mlp.fc1", config.intermediate, hidden, true);
    layer.down = take_linear(binder, name + "mlp.fc2", hidden, config.intermediate, true);
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

LlavaWeights take_llava(WeightsBinder& binder, const ModelConfig& config) {
  const std::string prefix = "model.multi_modal_projector.";
  const int64_t hidden = config.decoder.hidden;
  const bool bias = config.llava->projector_bias;
  LlavaWeights llava;
  llava.projector_in =
      take_linear(binder, prefix + "linear_1", hidden, config.siglip->hidden, bias);
  llava.projector_out = take_linear(binder, prefix + "linear_2", hidden, hidden, bias);
  llava.newline = binder.take("model.image_newline", Shape{hidden});
  return llava;
}

// NaN and infinity have all exponent bits set.
bool all_finite(const Context& context, const Tensor& tensor) {
  const auto check = [&](auto mask, const auto* bits) {
    std::atomic<bool> finite{true};
    context.threads->parallel_for(tensor.elements(), 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if ((bits[i] & mask) == mask) {
          finite.store(false, std::memory_order_relaxed);
          return;
        }
      }
    });
    return finite.load();
  };
  const std::byte* raw = tensor.view().raw();
  switch (tensor.dtype()) {
    case DType::f32:
      return check(uint32_t{0x7f800000}, reinterpret_cast<const uint32_t*>(raw));
    case DType::bf16:
      return check(uint16_t{0x7f80}, reinterpret_cast<const uint16_t*>(raw));
    default:
      return check(uint16_t{0x7c00}, reinterpret_cast<const uint16_t*>(raw));
  }
}

}  // namespace

ModelWeights bind_weights(const Context& context, const ModelConfig& config,
                          const TensorFiles& files, bool check_finite) {
  WeightsBinder binder(files);
  ModelWeights weights;
  weights.decoder = take_decoder(binder, config.decoder);
  if (config.qwen_vision) weights.qwen_vision = take_qwen_vision(binder, *config.qwen_vision);
  if (config.siglip) weights.siglip = take_siglip(binder, *config.siglip);
  if (config.llava) weights.llava = take_llava(binder, config);
  binder.finish();
  weights.parameters = binder.parameters();
  weights.bytes = binder.bytes();
  if (!check_finite) return weights;
  for (const auto& [name, tensor] : binder.taken()) {
    if (!all_finite(context, tensor)) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: tensor {} holds a NaN or an infinity; download it again",
                              files.directory(), name));
    }
  }
  return weights;
}

}  // namespace kinora
