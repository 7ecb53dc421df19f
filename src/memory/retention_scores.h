// The scores of retention.h where the rows lie. Used by retention.cc only.
#pragma once

#include <span>

#include "memory/retention.h"

namespace kinora::cuda {

// Σ x² over each row, or Σ question · x where there is a question. `rows`: [rows, kv heads, head
// size] on a GPU, f32 or bf16, contiguous.
void row_sums(const Context& context, ConstTensorView rows, std::span<const double> question,
              std::span<double> sums);

}  // namespace kinora::cuda
