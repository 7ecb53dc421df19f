// Means of rows that lie side by side: of the embeddings or the keys of a frame.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// Mean rows of f32 [rows, width] that lie anywhere: rows [begins[i], begins[i + 1]) for each i;
// [means, width] on the host.
std::vector<float> mean_rows(const Context& context, ConstTensorView rows,
                             std::span<const int32_t> begins);

namespace cuda {
// out [means, width] = means of rows [begins[i], begins[i + 1]) of rows [count, width]
void mean_rows(const Context& context, ConstTensorView rows, ConstTensorView begins,
               TensorView out);
}  // namespace cuda

}  // namespace kinora
