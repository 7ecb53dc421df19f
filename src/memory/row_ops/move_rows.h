// Rows that lie apart brought together: gaps closed that pruning leaves (FlatMemory), rows copied
// that a question reads (partial/stored_rows.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// rows[i] = rows[kept[i]], row by row of `row_bytes` bytes; `kept` is increasing.
void move_rows_up(Device device, std::byte* rows, int64_t row_bytes, std::span<const int32_t> kept);
// The same for several lists of rows with the same places, such as keys and values of all layers:
// where few stay, a GPU moves them all at once.
void move_rows_up(const Context& context, std::span<std::byte* const> lists, int64_t row_bytes,
                  std::span<const int32_t> kept);

// to[i] = rows[places[i]]; both contiguous and of one type, `to` on the context's device. Rows on
// the host are read by a GPU where they lie if it can, else they are collected there first.
//   rows [count, kv heads, head size], to [places, kv heads, head size]
void copy_rows(const Context& context, ConstTensorView rows, std::span<const int32_t> places,
               TensorView to);
// The same for keys and values that lie side by side: the places are looked at once.
void copy_row_pairs(const Context& context, ConstTensorView keys, ConstTensorView values,
                    std::span<const int32_t> places, TensorView to_keys, TensorView to_values);

namespace cuda {
void move_rows_up(int device, std::byte* rows, int64_t row_bytes, std::span<const int32_t> kept);
// The same with the indexes on the GPU, i32 [kept]; only starts the work.
void move_rows_up(const Context& context, std::byte* rows, int64_t row_bytes, ConstTensorView kept);
// At most most_moved_together rows of any number of lists; only starts the work.
constexpr size_t most_moved_together = 64;
void move_lists_up(const Context& context, std::span<std::byte* const> lists, int64_t row_bytes,
                   std::span<const int32_t> kept);
// One or two lists of rows with the same places.
struct RowCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
};
void copy_rows(const Context& context, std::span<const RowCopy> copies, int64_t row_bytes,
               std::span<const int32_t> places);
}  // namespace cuda

}  // namespace kinora
