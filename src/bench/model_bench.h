// Measures a model's shape with random weights on a GPU. Each figure is set against the ceiling
// measured in the same run: the best rate of a plain matrix product, or the read bandwidth. Used by
// cli/commands/bench.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/attention_dtype.h"
#include "attention/row_mass.h"
#include "base/context.h"
#include "bench/draft_bench.h"
#include "bench/shapes.h"
#include "model/config.h"
#include "model/decoder/decoder.h"
#include "ops/packed_matrix.h"

namespace kinora::cli {

struct BenchCeilings {
  double multiply_rate = 0;   // operations per second
  double read_bandwidth = 0;  // bytes per second
};

struct PrefillAttention {
  std::string name = "dense";
  std::vector<std::string> mix;  // of its heads, where it needs a table (head_mix.h)
  AttentionDtype dtype = AttentionDtype::bf16;
};

struct PrefillFigure {
  int64_t tokens = 0;
  int64_t group = 0;
  int64_t layers = 0;  // that ran; time is scaled to all of them
  double seconds = 0;
  double operations = 0;
  int64_t peak_bytes = 0;
  // Of sparse attention: what it computed of dense attention, and its time in all layers.
  double attention_share = 1;
  double index_seconds = 0;
  double attention_seconds = 0;
  AttentionLaunches launches{};  // where FP8 was asked for
};
struct ProductsFigure {
  int64_t rows = 0;
  double seconds = 0;  // of one layer's four products
  double operations = 0;
};
struct DecodeFigure {
  int64_t context = 0;        // rows of each session
  int64_t sessions = 1;       // that decode together
  int64_t tokens = 1;         // of each session; more than one: drafts being checked
  double seconds = 0;         // per step, sampling included
  double device_seconds = 0;  // of these, from the first kernel to the logits
  double step_bytes = 0;      // weights and rows that a step reads, as they are kept
  // Of steps that add up the mass of rows, in turns with the others; 0: not measured.
  double mass_seconds = 0;
  double mass_device_seconds = 0;
};

class ModelBench {
 public:
  // With `packed`, the layers' weights are in 4 or 8 bits, else bf16. Keys and values are kept in
  // `rows`.
  ModelBench(const Context& context, const ModelShape& shape, std::optional<PackedKind> packed = {},
             DType rows = DType::bf16);

  BenchCeilings ceilings() const;
  // Groups of `group` tokens, one after another. If `layers` is less than the model has, only the
  // first ones run.
  // `attention` is a policy by name.
  PrefillFigure prefill(int64_t tokens, int64_t group, int64_t layers,
                        const PrefillAttention& wanted = {}) const;
  ProductsFigure products(int64_t rows) const;
  // With `mass`, steps of sessions that ask for it take turns with those of others that do not.
  // With `videos`, the rows are those of that many videos, and sessions are conversations about one
  // of them.
  DecodeFigure decode(int64_t rows, int64_t steps, int64_t sessions = 1, int64_t tokens = 1,
                      const std::vector<LayerHeads>& mass = {}, int64_t videos = 0) const;
  // One tree of guesses by a draft with a vocabulary of `own` tokens; 0: all of the model's.
  DraftFigure draft(const TreeShape& shape, int64_t own) const {
    return measure_draft(context_, *decoder_, config_, shape, own);
  }
  int64_t layers() const { return config_.layers; }
  VisionFigure vision(int64_t frames, int64_t width, int64_t height) const;

  int64_t weight_bytes() const;

 private:
  int64_t layer_parameters() const;
  Sequence group_at(int64_t begin, int64_t count) const;

  const Context& context_;
  ModelShape shape_;
  std::optional<PackedKind> packed_;
  DType rows_;
  DecoderConfig config_;
  std::shared_ptr<const Decoder> decoder_;
};

}  // namespace kinora::cli
