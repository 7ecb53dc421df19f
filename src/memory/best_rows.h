// Which rows of a group stay, chosen where the rows are, so that pruning a layer on a GPU waits for
// nothing. The same choice as row_scores and choose_rows of retention.h. Used by retention.cc only.
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
  int64_t visual = 0;     // how many rows stay that are not text, at least 1
};

// Increasing indexes of all text rows and the best of the others, i32 on the GPU; of rows with
// equal scores the earlier ones stay. Only starts the work.
Tensor best_rows(const Context& context, const RowChoice& choice, std::span<const double> question,
                 std::span<const Modality> modalities);

}  // namespace kinora::cuda
