// Keys and values in 8 bits. A head of a row is its codes and, right behind them, a scale in bf16
// for every 32 columns, so that rows are copied, moved and saved as bytes like those of other
// types:
//
//   rows [rows, heads, head size + 2 · ⌈head size / 32⌉], i8 (int8, −127 … 127) or u8 (FP8, e4m3)
//   x[c] = code[c] · scale[c / 32]     scale ≈ largest |x| of the columns / 127, or / 448
//
// Some columns of a model's keys are many times larger than the others. One scale for a whole head
// would leave the others a few codes each, and answers would change.
// Memories keep such rows on any device. Attention on the CPU (attention/cpu/) and decoding on a
// GPU (attention/cuda/decode/) read them as they are; who else looks at numbers widens them first.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// A code of FP8 as a stored type: the finite kind, as in packed_matrix.h.
struct e4m3 {
  uint8_t bits = 0;
};
template <>
struct dtype_of<e4m3> {
  static constexpr DType value = DType::u8;
};

constexpr bool rows_are_packed(DType type) { return type == DType::i8 || type == DType::u8; }

constexpr int64_t columns_per_scale = 32;

// Elements that one head of a row takes.
constexpr int64_t stored_columns(DType type, int64_t head_size) {
  const int64_t scales = (head_size + columns_per_scale - 1) / columns_per_scale;
  return rows_are_packed(type) ? head_size + scales * static_cast<int64_t>(sizeof(bf16))
                               : head_size;
}
inline int64_t head_size_of(const ConstTensorView& rows) {
  const int64_t stored = rows.size(2), whole = stored_columns(rows.dtype(), columns_per_scale);
  if (!rows_are_packed(rows.dtype())) return stored;
  return stored - static_cast<int64_t>(sizeof(bf16)) * ((stored + whole - 1) / whole);
}

// "int8", "fp8", or the name of the type.
constexpr std::string_view row_type_name(DType type) {
  if (type == DType::i8) return "int8";
  return type == DType::u8 ? "fp8" : dtype_name(type);
}

// Puts rows where they are kept. In 8 bits, columns that share a scale with a NaN or an
// infinity are all NaN.
//   x    [rows, heads, head size] f32, on a GPU also bf16
//   out  [rows, heads, stored columns] in any type of rows
void store_rows(const Context& context, ConstTensorView x, TensorView out);

// Kept rows [rows, heads, stored columns] in any type → out [rows, heads, head size] f32, on a GPU
// also bf16.
void widen_rows(const Context& context, ConstTensorView rows, TensorView out);

// Rows whose elements are numbers: the same, or those of 8 bits widened into `room`. In f32 they
// are what is stored; on a GPU they may also be rounded to bf16, which its faster kernels want.
ConstTensorView plain_rows(const Context& context, ConstTensorView rows, Tensor& room,
                           DType wide = DType::f32);

// Calls body(T()) with the stored type of rows that a dtype names.
template <class Body>
auto with_row_type(DType type, const Body& body) {
  switch (type) {
    case DType::bf16:
      return body(bf16());
    case DType::f16:
      return body(f16());
    case DType::i8:
      return body(int8_t());
    case DType::u8:
      return body(e4m3());
    default:
      return body(float());
  }
}

}  // namespace kinora
