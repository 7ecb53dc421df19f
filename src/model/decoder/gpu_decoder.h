// The decoder on a GPU: the same mathematics as TransformerDecoder with fused projections and, for
// the few tokens of a decoding step, one captured graph that is replayed without work on the host
// for every layer. The residual stream is f32; what goes through products is bf16, or f32 where
// results must equal the CPU's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/decoder/decoder.h"
#include "model/weights/weights.h"

namespace kinora {

class GpuDecoder final : public Decoder {
 public:
  // The weights on the device, fused. All of one type but the norms.
  struct Layer {
    Tensor input_norm;     // [hidden]
    LinearWeights qkv;     // [(heads + 2 × kv heads) × head size, hidden]
    LinearWeights output;  // [hidden, heads × head size]
    Tensor query_norm;     // [head size]; undefined without q/k norm
    Tensor key_norm;
    Tensor post_norm;  // [hidden]
    Tensor gate_up;    // [2 × intermediate, hidden]
    Tensor down;       // [hidden, intermediate]
  };
  struct Weights {
    Tensor embeddings;  // [vocabulary, hidden]
    std::vector<Layer> layers;
    Tensor norm;  // [hidden]
    Tensor head;  // [vocabulary, hidden]
  };

  // Moves the weights to the context's device. `activations` is bf16 or f32.
  GpuDecoder(const Context& context, const DecoderConfig& config, const DecoderWeights& weights,
             DType activations);
  // Over weights that are there already (benchmarks).
  GpuDecoder(const Context& context, const DecoderConfig& config, Weights weights,
             DType activations);
  ~GpuDecoder() override;

  int64_t hidden_size() const override { return config_.hidden; }
  int64_t vocabulary() const override { return config_.vocabulary; }

  Tensor embed(const Context& context, std::span<const int32_t> ids) const override;
  Tensor prefill(const Context& context, const TokenGroup& group, RowStore& store,
                 Attention& attention, const PrefillOptions& options) const override;
  Tensor logits(const Context& context, ConstTensorView hidden) const override;

 private:
  struct Run;   // one prefill under way
  class Steps;  // decoding steps: their buffers and graphs

  void check(const TokenGroup& group, const RowStore& store, const PrefillOptions& options) const;
  bool is_step(const TokenGroup& group, const Attention& attention,
               const PrefillOptions& options) const;
  Tensor prefill_group(const Context& context, const TokenGroup& group, RowStore& store,
                       Attention& attention, const PrefillOptions& options) const;
  void attend(Run& run, int layer) const;
  void norm_heads(const Context& context, const Layer& layer, TensorView qkv) const;
  void feed_forward(Run& run, int layer, int64_t first_row) const;

  DecoderConfig config_;
  Weights weights_;
  DType type_;  // of activations
  std::vector<double> frequencies_;
  std::unique_ptr<Steps> steps_;
};

// A decoder over weights moved to the context's GPU. Throws unsupported in a build without CUDA.
std::unique_ptr<Decoder> make_gpu_decoder(const Context& context, const DecoderConfig& config,
                                          const DecoderWeights& weights, DType activations);

}  // namespace kinora
