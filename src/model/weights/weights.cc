#include "model/weights/weights.h"

#include <fmt/format.h>

#include <string>

#include "model/weights/weights_binder.h"

namespace kinora {

DecoderLayerWeights take_decoder_layer(WeightsBinder& binder, const DecoderConfig& config,
                                       const std::string& name) {
  const int64_t query = config.heads * config.head_size;
  const int64_t key = config.kv_heads * config.head_size;
  const std::string attention = name + "self_attn.";
  DecoderLayerWeights layer;
  if (config.beside) {  // the embedding is what stands beside the state
    layer.beside_norm = binder.take(name + "input_layernorm.weight", Shape{config.hidden});
    layer.input_norm = binder.take(name + "hidden_norm.weight", Shape{config.hidden});
  } else if (config.input_norm) {
    layer.input_norm = binder.take(name + "input_layernorm.weight", Shape{config.hidden});
  }
  const int64_t input = config.beside ? 2 * config.hidden : config.hidden;
  layer.query = binder.take_product(attention + "q_proj", query, input, config.qkv_bias);
  layer.key = binder.take_product(attention + "k_proj", key, input, config.qkv_bias);
  layer.value = binder.take_product(attention + "v_proj", key, input, config.qkv_bias);
  layer.output =
      binder.take_product(attention + "o_proj", config.hidden, query, config.output_bias);
  if (config.qk_norm) {
    layer.query_norm = binder.take(attention + "q_norm.weight", Shape{config.head_size});
    layer.key_norm = binder.take(attention + "k_norm.weight", Shape{config.head_size});
  }
  layer.post_norm = binder.take(name + "post_attention_layernorm.weight", Shape{config.hidden});
  const int64_t wide = config.intermediate;
  layer.gate = binder.take_product(name + "mlp.gate_proj", wide, config.hidden, false);
  layer.up = binder.take_product(name + "mlp.up_proj", wide, config.hidden, false);
  layer.down = binder.take_product(name + "mlp.down_proj", config.hidden, wide, false);
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
    decoder.head.weight = decoder.embeddings;
  } else {
    decoder.head = binder.take_product("lm_head", config.vocabulary, config.hidden, false);
  }
  return decoder;
}

}  // namespace kinora
