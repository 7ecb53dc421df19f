// Launches the Hopper kernel (hopper_kernel.cuh), kept in a file of its own: it takes long to
// compile and its registers are watched by the build.
#pragma once

#include <cstdint>
#include <span>

#include "attention/attention.h"
#include "base/context.h"

namespace kinora::cuda_attention {
struct Problem;
}

namespace kinora::hopper {

// Of the head sizes that the kernel is made for.
constexpr bool takes_head_size(int64_t size) { return size == 64 || size == 128; }

// Whether the device has what the kernel needs and this program was compiled for it.
bool runs_on(int device);

// What a plan's segments are besides contiguous keys. Pieces come without rows and `strides`.
struct ListKinds {
  bool rows = false;                      // read row by row
  bool pieces = false;                    // pieces or columns
  std::span<const int32_t> strides{};     // of strided keys, as DevicePlan has them
  const int32_t* head_strides = nullptr;  // likewise
};

// One pass of a plan cut for 128 rows and 128 keys. bf16 rows whose strides are multiples of eight
// elements. The copies of columns are [columns, 1, head size], empty where there are none.
void launch(const Context& context, const cuda_attention::Problem& problem, const RowSet& rows,
            ListKinds lists, const ConstTensorView& key_columns,
            const ConstTensorView& value_columns);

}  // namespace kinora::hopper
