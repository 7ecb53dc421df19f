// Picking rows by number: token embeddings, the window order of vision towers, putting visual
// tokens in their places among text, and adding to them there.
#pragma once

#include <cstdint>
#include <span>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// out[i] = table[rows[i]], widened to f32. Throws when a row is not in the table.
//   table  [count, d] f32, bf16 or f16
//   out    [rows.size(), d] f32
void gather_rows(const Context& context, ConstTensorView table, std::span<const int32_t> rows,
                 TensorView out);

// out[rows[i]] = x[i]; rows that are not named keep their value. No row may be named twice.
//   x    [rows.size(), d] f32
//   out  [count, d] f32
void scatter_rows(const Context& context, ConstTensorView x, std::span<const int32_t> rows,
                  TensorView out);

// out[rows[i]] += x[i]; rows that are not named keep their value. No row may be named twice.
//   x    [rows.size(), d] f32
//   out  [count, d] f32
void add_rows(const Context& context, ConstTensorView x, std::span<const int32_t> rows,
              TensorView out);

}  // namespace kinora
