// Runs any batch through the layers: the sequences' rows lie one after another, products take them
// all at once, memory goes sequence by sequence, and so does attention, except that of decoding
// steps.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "attention/step_attention.h"
#include "model/decoder/decoder.h"
#include "model/decoder/layers.h"
#include "model/decoder/transformer_decoder.h"
#include "ops/rope.h"

namespace kinora {

class DecoderSteps;

class BatchRunner final : public DecoderRunner {
 public:
  // The decoder and everything else passed by reference must outlive the runner.
  BatchRunner(const Context& context, const TransformerDecoder& decoder,
              const DecoderLayers& layers, std::span<const double> frequencies);
  ~BatchRunner() override;

  using DecoderRunner::forward;
  std::vector<Forwarded> forward(std::span<const Sequence> batch) override;

  const DecoderSteps* steps() const { return steps_.get(); }  // null on a CPU; for tests

 private:
  struct Place;  // of one sequence in the batch
  struct Run;

  void check(const Sequence& sequence) const;
  void check_deep(const Sequence& sequence) const;
  void forward_general(std::vector<Place>& places);
  void embed(Run& run);
  void attend(Run& run, int layer);
  void read(Run& run, int layer, Place& place);
  void attend(Run& run, int layer, Place& place);
  void use(int layer, Place& place);
  void add_deep(Run& run, int layer);
  void keep_states(Run& run, int layer);
  void finish_last(Run& run, int layer);

  Context context_;
  const TransformerDecoder& decoder_;
  const DecoderLayers& layers_;
  std::span<const double> frequencies_;
  LayerSpace space_;
  StepAttention together_;               // of decoding steps, on a CPU
  std::unique_ptr<DecoderSteps> steps_;  // on a GPU
};

}  // namespace kinora
