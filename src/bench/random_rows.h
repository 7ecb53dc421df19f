// Rows of any type with random numbers in them, as decoding is measured over.
#pragma once

#include "memory/memory.h"
#include "model/weights/random_weights.h"

namespace kinora::cli {

inline void fill_rows(const Context& context, const NewRows& rows, uint64_t seed) {
  for (const TensorView& to : {rows.keys, rows.values}) {
    seed += 1000;
    if (!rows_are_packed(to.dtype())) {
      fill_random(context, to, 1.0f, seed);
      continue;
    }
    const Tensor wide =
        random_tensor(context, DType::f32, {to.size(0), to.size(1), head_size_of(to)}, 1.0f, seed);
    store_rows(context, wide, to);
  }
}

}  // namespace kinora::cli
