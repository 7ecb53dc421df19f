// How much the tokens of a video change from one unit to the next. Used by the rules that look
// back.
#pragma once

#include <cstdint>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

class Changes {
 public:
  explicit Changes(int64_t tokens_per_unit) : unit_(tokens_per_unit) {}

  // 1 − cosine to the token at the same place one unit earlier; infinite in the first unit of all,
  // which has none. tokens: f32 [units × tokens of a unit, hidden] of the next units.
  std::vector<float> next(const Context& context, ConstTensorView tokens, int64_t units);

 private:
  const int64_t unit_;
  Tensor before_;  // f32 [tokens of a unit, hidden]; undefined: nothing has come
};

// A copy of some rows, f32 [rows, width].
Tensor copy_of(const Context& context, ConstTensorView rows);

// 1 − x where the CPU can read it.
std::vector<float> one_minus(const Tensor& x);

}  // namespace kinora
