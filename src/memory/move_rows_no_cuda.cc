#include "base/error.h"
#include "memory/move_rows.h"
#include "memory/retention_scores.h"

// This build has no CUDA compiler, so no rows can live on a GPU.
namespace kinora::cuda {

void move_rows_up(int, std::byte*, int64_t, std::span<const int32_t>) {
  throw Error(ErrorKind::unsupported, "this kinora was built without CUDA");
}

void row_sums(const Context&, ConstTensorView, std::span<const double>, std::span<double>) {
  throw Error(ErrorKind::unsupported, "this kinora was built without CUDA");
}

}  // namespace kinora::cuda
