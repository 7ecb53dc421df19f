#include "base/no_cuda.h"

#include "memory/best_rows.h"
#include "memory/move_rows.h"

namespace kinora::cuda {

void move_rows_up(int, std::byte*, int64_t, std::span<const int32_t>) { no_cuda(); }
void move_rows_up(const Context&, std::byte*, int64_t, ConstTensorView) { no_cuda(); }
void copy_rows(const Context&, const std::byte*, int64_t, std::span<const int32_t>, std::byte*) {
  no_cuda();
}

Tensor best_rows(const Context&, const RowChoice&, std::span<const double>,
                 std::span<const Modality>) {
  no_cuda();
}

}  // namespace kinora::cuda
