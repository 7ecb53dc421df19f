// What most rules score by: one sum over each row, its key/value heads joined.
#pragma once

#include <span>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// rows: [rows, kv heads, head size] on the CPU, f32, bf16 or f16.
std::vector<double> row_norms(const Context& context, ConstTensorView rows);  // √ Σ x²
// Σ x · weights over each row.
std::vector<double> row_products(const Context& context, ConstTensorView rows,
                                 std::span<const double> weights);

}  // namespace kinora
