#include "ops/cpu_kernels.h"
#include "ops/rows.h"

namespace kinora::cpu {

// Rows move one at a time through `convert`, which widens them where needed.
void gather_rows(const Context& context, ConstTensorView table, std::span<const int32_t> rows,
                 TensorView out) {
  for_row_ranges(context, out.size(0), out.size(1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      convert(context, table[rows[static_cast<size_t>(i)]], out[i]);
    }
  });
}

void scatter_rows(const Context& context, ConstTensorView x, std::span<const int32_t> rows,
                  TensorView out) {
  for_row_ranges(context, x.size(0), x.size(1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      convert(context, x[i], out[rows[static_cast<size_t>(i)]]);
    }
  });
}

void add_rows(const Context& context, ConstTensorView x, std::span<const int32_t> rows,
              TensorView out) {
  for_row_ranges(context, x.size(0), x.size(1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const TensorView target = out[rows[static_cast<size_t>(i)]];
      add(context, target, x[i], target);
    }
  });
}

}  // namespace kinora::cpu
