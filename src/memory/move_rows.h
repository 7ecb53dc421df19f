// Closes the gaps that pruning leaves between rows. Used by FlatMemory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// rows[i] = rows[kept[i]], row by row of `row_bytes` bytes; `kept` is increasing.
void move_rows_up(Device device, std::byte* rows, int64_t row_bytes, std::span<const int32_t> kept);

namespace cuda {
void move_rows_up(int device, std::byte* rows, int64_t row_bytes, std::span<const int32_t> kept);
// The same with the indexes on the GPU, i32 [kept]; only starts the work.
void move_rows_up(const Context& context, std::byte* rows, int64_t row_bytes, ConstTensorView kept);
}  // namespace cuda

}  // namespace kinora
