#include "base/error.h"
#include "memory/best_rows.h"
#include "memory/move_rows.h"

// This build has no CUDA compiler, so no rows can live on a GPU.
namespace kinora::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorKind::unsupported, "this kinora was built without CUDA");
}

}  // namespace

void move_rows_up(int, std::byte*, int64_t, std::span<const int32_t>) { refuse(); }
void move_rows_up(const Context&, std::byte*, int64_t, ConstTensorView) { refuse(); }

Tensor best_rows(const Context&, const RowChoice&, std::span<const double>,
                 std::span<const Modality>) {
  refuse();
}

}  // namespace kinora::cuda
