// The decoder of every family on every device: layers.h says what is computed, this runs batches of
// sequences through it. On a GPU the few tokens of decoding steps go through captured graphs
// (steps.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/decoder/decoder.h"
#include "model/decoder/layers.h"
#include "model/weights/weights.h"

namespace kinora {

struct DecoderOptions {
  // Rounds activations to bf16 where weights are bf16 and the CPU has instructions for it: faster
  // prefill, no longer equal to f32. Off unless asked for.
  bool native_bf16 = false;
  DType activations = DType::f32;       // bf16 on a GPU
  ProductObserver* observer = nullptr;  // null: nobody looks on
};

// Throws bad_input for an id that is not in the vocabulary.
void check_tokens(std::span<const int32_t> ids, int64_t vocabulary);

class TransformerDecoder final : public Decoder {
 public:
  // Moves the weights to the context's device.
  TransformerDecoder(const Context& context, const DecoderConfig& config,
                     const DecoderWeights& weights, const DecoderOptions& options = {});
  // Uses weights that are already on the right device.
  TransformerDecoder(const DecoderConfig& config, PlacedWeights weights,
                     const DecoderOptions& options);

  int64_t hidden_size() const override { return layers_.config().hidden; }
  int64_t vocabulary() const override { return layers_.config().vocabulary; }
  int layer_count() const override { return layers_.count(); }
  const DecoderConfig& config() const { return layers_.config(); }
  const PlacedWeights& weights() const { return layers_.weights(); }

  Tensor embed(const Context& context, std::span<const int32_t> ids) const override;
  std::unique_ptr<DecoderRunner> runner(const Context& context) const override;
  Tensor norm(const Context& context, ConstTensorView rows) const override;
  Tensor logits(const Context& context, ConstTensorView hidden) const override {
    return layers_.logits(context, hidden);
  }
  const DecoderLayers* layers() const override { return &layers_; }
  std::span<const double> frequencies() const { return frequencies_; }  // of the rotation

 private:
  DecoderLayers layers_;
  std::vector<double> frequencies_;
};

}  // namespace kinora
