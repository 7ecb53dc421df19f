// The decoder of every family, on weights that weights.cc has bound.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/decoder/decoder.h"
#include "model/weights/weights.h"
#include "ops/matmul.h"

namespace kinora {

struct DecoderOptions {
  // Rounds activations to bf16 where weights are bf16 and the CPU multiplies such natively: faster
  // prefill, no longer equal to f32. Off unless asked for.
  bool native_bf16 = false;
};

class TransformerDecoder final : public Decoder {
 public:
  TransformerDecoder(const DecoderConfig& config, DecoderWeights weights,
                     const DecoderOptions& options = {});

  int64_t hidden_size() const override { return config_.hidden; }
  int64_t vocabulary() const override { return config_.vocabulary; }
  const DecoderConfig& config() const { return config_; }

  Tensor embed(const Context& context, std::span<const int32_t> ids) const override;
  Tensor prefill(const Context& context, const TokenGroup& group, RowStore& store,
                 Attention& attention, const PrefillOptions& options) const override;
  Tensor logits(const Context& context, ConstTensorView hidden) const override;

 private:
  struct Run;  // one prefill under way: its scratch and where it stands

  void check(const TokenGroup& group, const RowStore& store, const PrefillOptions& options) const;
  void run_layers(Run& run) const;
  void attend(Run& run, int layer) const;
  void feed_forward(Run& run, int layer, int64_t first_row) const;
  void project(const Context& context, ConstTensorView x, const LinearWeights& linear,
               TensorView out, bool accumulate = false) const;
  void project_parts(const Context& context, ConstTensorView x,
                     std::initializer_list<MatmulPart> parts) const;

  DecoderConfig config_;
  DecoderWeights weights_;
  DecoderOptions options_;
  std::vector<double> frequencies_;  // of the rotation, after any scaling rule
};

// 1 / θ^(2i/d), changed as Llama 3 does where the config says so.
std::vector<double> rotary_frequencies(const RopeConfig& rope, int64_t head_size);

// Throws bad_input for an id that is not in the vocabulary.
void check_tokens(std::span<const int32_t> ids, int64_t vocabulary);

}  // namespace kinora
