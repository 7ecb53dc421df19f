// The largest entries of one row of logits: greedy choice and top-k candidates in generate/.
#pragma once

#include <cstdint>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

struct Candidate {
  int32_t index = 0;
  float value = 0;
  bool operator==(const Candidate&) const = default;
};

// Index of the largest of x [n] f32; the lowest index among equals. NaN is never chosen; throws
// when there is nothing else (or nothing at all).
int32_t argmax(const Context& context, ConstTensorView x);
// The same for every row of x [rows, n]; a GPU is waited for once.
std::vector<int32_t> argmax_rows(const Context& context, ConstTensorView x);

// The min(k, n) largest of x [n] f32, largest first, lower index first among equals; NaN left out.
std::vector<Candidate> top_k(const Context& context, ConstTensorView x, int64_t k);

// The largest of a row, and its mass: Σ exp(x[i] − largest), NaN left out; 0 where nothing is left.
struct RankedRow {
  std::vector<Candidate> best;
  double mass = 0;
};
// Both for every row of x [rows, n]; a GPU is waited for once.
std::vector<RankedRow> top_k_rows(const Context& context, ConstTensorView x, int64_t k);

}  // namespace kinora
