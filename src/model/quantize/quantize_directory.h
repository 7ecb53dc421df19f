// Writes a model directory with its decoder's projections in 4 or 8 bits, as compressed-tensors,
// which transformers and vLLM read too. One tensor at a time is in memory, however large the model,
// and for 4 bits with a sample what input_moments.h says. `kinora quantize` is its command.
#pragma once

#include <cstdint>
#include <string>

#include "base/cancel.h"
#include "base/context.h"
#include "base/file.h"
#include "base/progress.h"
#include "ops/packed_matrix.h"

namespace kinora {

struct QuantizeOptions {
  PackedKind kind = PackedKind::int4;
  int64_t group = 128;  // inputs that share a scale, for int4; where it does not divide: 32
  bool head = false;    // the output head too, in 8 bits
  bool search = true;   // for the scale of every group; else its largest weight decides
  std::string sample;   // text to calibrate with; empty: all inputs count alike, each by itself
  int64_t sample_tokens = 4096;
};

struct QuantizeResult {
  int64_t layers = 0;        // tensors in fewer bits
  int64_t bytes_before = 0;  // of all tensors
  int64_t bytes_after = 0;
  double error = 0;  // of the rounded weights: root of squares over root of squares
  int64_t sampled_tokens = 0;
};

// `output` must not exist; it appears whole or not at all.
QuantizeResult quantize_directory(const Context& context, const FileSystem& files,
                                  const std::string& directory, const std::string& output,
                                  const QuantizeOptions& options, Progress* progress,
                                  const CancelToken& cancel);

}  // namespace kinora
