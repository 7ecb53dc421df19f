// Measures a model's shape with random weights on the CPU, through a few of its layers, scaled to
// all of them: a machine without a GPU need not hold the whole model to say how fast it would be.
// Each figure is set against a ceiling measured in the same run. Used by `kinora bench model`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/context.h"
#include "bench/shapes.h"
#include "model/config.h"
#include "model/decoder/decoder.h"
#include "ops/packed_matrix.h"

namespace kinora::cli {

struct CpuCeilings {
  double multiply_rate = 0;   // operations a second of our own largest product, f32 by bf16
  double read_bandwidth = 0;  // bytes a second, all threads
};

struct CpuFigure {
  int64_t tokens = 0;     // prefilled, or rows in memory while decoding
  double seconds = 0;     // of the prompt, or of one token
  double operations = 0;  // of the prompt
  double step_bytes = 0;  // that one token reads
};

class CpuBench {
 public:
  // Only this many layers are made and run. Keys and values are kept in `rows`.
  CpuBench(const Context& context, const ModelShape& shape, int64_t layers,
           std::optional<PackedKind> packed = {}, DType rows = DType::bf16);

  CpuCeilings ceilings() const;
  CpuFigure prefill(int64_t tokens) const;
  CpuFigure decode(int64_t rows) const;

 private:
  double scale() const;  // from the layers that ran to all

  const Context& context_;
  std::optional<PackedKind> packed_;
  DType rows_;
  DecoderConfig whole_, part_;
  std::shared_ptr<const Decoder> decoder_;
};

}  // namespace kinora::cli
