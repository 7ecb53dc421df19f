// Which rows of a group stay, chosen on the device that holds them, so that pruning a layer on a
// GPU never waits. The choice is that of choose_rows (retention.h) by a rule's scores (rule.h).
#pragma once

#include <cstdint>
#include <span>

#include "base/context.h"
#include "base/modality.h"
#include "base/tensor.h"

namespace kinora::cuda {

// By Σ question · x where there is a question, else by the norm.
struct RowChoice {
  ConstTensorView rows;   // [rows, kv heads, head size] on a GPU, f32 or bf16, contiguous
  bool smallest = false;  // norms: small ones stay
  int64_t visual = 0;     // how many non-text rows stay, at least 1
};

// Increasing indexes of all text rows and the best of the others, i32 on the GPU; of rows with
// equal scores the earlier ones stay. Only starts the work.
Tensor best_rows(const Context& context, const RowChoice& choice, std::span<const double> question,
                 std::span<const Modality> modalities);

}  // namespace kinora::cuda
