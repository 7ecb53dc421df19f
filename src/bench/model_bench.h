// Measures a model's shape with random weights on a GPU, each figure beside the ceiling of the same
// run: the best rate of a plain matrix product, and the bandwidth of plain reading. Used by
// command_bench.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/context.h"
#include "model/config.h"
#include "model/decoder/decoder.h"

namespace kinora::cli {

// "qwen2.5-vl-7b", "qwen2.5-vl-3b" ("3b"), "llava-onevision-7b". Throws a usage error with the
// list.
ModelConfig shape_config(const std::string& name);

struct BenchCeilings {
  double multiply_rate = 0;   // operations a second
  double read_bandwidth = 0;  // bytes a second
};

struct PrefillFigure {
  int64_t tokens = 0;
  int64_t group = 0;
  int64_t layers = 0;  // that ran; time is scaled to all of them
  double seconds = 0;
  double operations = 0;
  int64_t peak_bytes = 0;
};
struct ProductsFigure {
  int64_t rows = 0;
  double seconds = 0;  // of one layer's four products
  double operations = 0;
};
struct DecodeFigure {
  int64_t context = 0;
  double seconds = 0;         // a token, sampling included
  double device_seconds = 0;  // of these, from the first kernel to the logits
  double step_bytes = 0;      // weights and rows that a token reads
};
struct VisionFigure {
  int64_t frames = 0, width = 0, height = 0, tokens = 0;
  double seconds = 0;
  double operations = 0;
};

class ModelBench {
 public:
  ModelBench(const Context& context, const ModelConfig& config);

  BenchCeilings ceilings() const;
  // Groups of `group` tokens, one after another. With fewer `layers` than the model has only the
  // first ones run.
  PrefillFigure prefill(int64_t tokens, int64_t group, int64_t layers) const;
  ProductsFigure products(int64_t rows) const;
  DecodeFigure decode(int64_t rows, int64_t steps) const;
  VisionFigure vision(int64_t frames, int64_t width, int64_t height) const;

  int64_t weight_bytes() const;

 private:
  struct Tower;
  int64_t layer_parameters() const;
  TokenGroup group_at(int64_t begin, int64_t count) const;

  const Context& context_;
  ModelConfig config_;
  std::shared_ptr<const Decoder> decoder_;
};

}  // namespace kinora::cli
