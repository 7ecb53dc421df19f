// One description of the decoder's layers for every device: what is multiplied with what, in which
// order. Attention itself is the caller's, between `project` and `finish`: a runner goes through
// each sequence's memory, a captured step through tables on the device.
#pragma once

#include <cstdint>
#include <vector>

#include "base/cancel.h"
#include "base/context.h"
#include "base/tensor.h"
#include "model/config.h"
#include "model/decoder/product_observer.h"
#include "model/weights/weights.h"

namespace kinora {

// One layer's weights where they are used. Products of the same input are stacked into one matrix
// on a GPU; on the CPU they stay in the mapped file, one by one.
struct LayerWeights {
  Tensor input_norm;                   // [hidden]; undefined: none
  Tensor beside_norm;                  // [hidden]; undefined: no rows beside
  std::vector<LinearWeights> qkv;      // together [(heads + 2 × kv heads) × head size, hidden]
  LinearWeights output;                // [hidden, heads × head size]
  Tensor query_norm;                   // [head size], f32 on a GPU; undefined without q/k norm
  Tensor key_norm;                     // the same
  Tensor post_norm;                    // [hidden]
  std::vector<LinearWeights> gate_up;  // together [2 × intermediate, hidden]
  LinearWeights down;                  // [hidden, intermediate]
};

struct PlacedWeights {
  Tensor embeddings;  // [vocabulary, hidden]
  std::vector<LayerWeights> layers;
  Tensor norm;         // [hidden]; undefined: none
  LinearWeights head;  // [vocabulary, hidden]
};

// Weights where the context's device computes with them. On a GPU they are moved and fused, in
// bf16, or in their own type where activations are f32.
PlacedWeights place_weights(const Context& context, const DecoderWeights& weights,
                            DType activations);

// Scratch for a run through the layers; grows with the tokens and is reused. Queries overwrite the
// normed input, and the output of attention overwrites the projections, once these are no longer
// needed.
struct LayerSpace {
  Tensor hidden;  // [tokens, hidden] f32: the residual stream
  Tensor beside;  // [tokens, hidden] f32: the rows beside, where the first layer reads them
  Tensor narrow;  // [tokens, max(input, heads × head size)]: the normed input, then the queries
  Tensor wide;  // [tokens, (heads + 2 × kv heads) × head size]: the projections, then the output
  Tensor output;  // [tokens, heads × head size]: of attention, where it must not replace `wide`
  Tensor gated;   // [strip, intermediate]
  Tensor up;  // [strip, intermediate], where gate and up are two products; with `apart` for both
  const CancelToken* cancel = nullptr;  // looked at between strips of a long group; may be null
};

class DecoderLayers {
 public:
  // `activations` is what goes through products: f32, or bf16 on a GPU. `native_bf16` rounds them
  // to bf16 where weights are bf16 and the CPU has instructions for it.
  DecoderLayers(const DecoderConfig& config, PlacedWeights weights, DType activations,
                bool native_bf16, ProductObserver* observer = nullptr);

  const DecoderConfig& config() const { return config_; }
  const PlacedWeights& weights() const { return weights_; }
  DType activations() const { return type_; }
  int count() const { return static_cast<int>(weights_.layers.size()); }
  int64_t qkv_width() const { return (config_.heads + 2 * config_.kv_heads) * config_.head_size; }
  float scale() const;  // of attention's scores

  // Whether rows of the products start where the kernels for few rows want them.
  bool fit_steps() const;

  // Makes room for this many tokens on the context's device. With `apart`, the output of attention
  // does not overwrite the projections.
  void grow(const Context& context, int64_t tokens, LayerSpace& space, bool apart = false) const;
  // Parts of the space for the first `tokens` tokens.
  TensorView normed(LayerSpace& space, int64_t tokens) const;   // [tokens, hidden]
  TensorView qkv(LayerSpace& space, int64_t tokens) const;      // [tokens, qkv_width]
  TensorView queries(LayerSpace& space, int64_t tokens) const;  // [tokens, heads, head size]
  TensorView mixed(LayerSpace& space, int64_t tokens) const;    // [tokens, heads, head size]

  // hidden → queries, keys and values of the first `tokens` rows, not yet normed or turned.
  void project(const Context& context, int layer, int64_t tokens, LayerSpace& space) const;
  // Norms every head of queries and keys, in place, where the model does (Qwen3).
  void norm_heads(const Context& context, int layer, TensorView qkv) const;
  // hidden += output(mixed), then the feed-forward layer, for some rows of both.
  //   mixed [rows, heads × head size], hidden [rows, hidden]
  void finish(const Context& context, int layer, ConstTensorView mixed, TensorView hidden,
              LayerSpace& space) const;
  // The final norm, or a copy where there is none.
  void norm(const Context& context, ConstTensorView hidden, TensorView out) const;
  // Hidden rows after the final norm → logits.
  Tensor logits(const Context& context, ConstTensorView hidden) const;
  // The same into memory that is there: rows in the type of activations → f32 [rows, vocabulary].
  void head(const Context& context, ConstTensorView rows, TensorView logits) const;

 private:
  TensorView part(Tensor& tensor, const Shape& shape) const;
  int64_t input_width() const { return config_.beside ? 2 * config_.hidden : config_.hidden; }
  TensorView make_input(const Context& context, const LayerWeights& layer, int64_t tokens,
                        LayerSpace& space) const;
  void show(const LayerWeights& layer, Product product, ConstTensorView rows) const;
  void feed_forward(const Context& context, const LayerWeights& layer, TensorView hidden,
                    LayerSpace& space) const;

  DecoderConfig config_;
  PlacedWeights weights_;
  DType type_;
  bool native_bf16_;
  ProductObserver* observer_;
};

}  // namespace kinora
