#include <cmath>

#include "ops/cpu_kernels.h"
#include "ops/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cosine_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace kinora::HWY_NAMESPACE;

HWY_NOINLINE float product(const float* a, const float* b, int64_t width) {
  return sum_over(width, [&](auto d, int64_t at, auto part, auto sum) HWY_ATTR {
    return hn::MulAdd(part.load(d, a + at), part.load(d, b + at), sum);
  });
}

void cosine_rows(const Context& context, ConstTensorView a, ConstTensorView b, TensorView out) {
  const int64_t width = a.size(1);
  for_row_ranges(context, a.size(0), width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* left = a.row<float>(row);
      const float* right = b.row<float>(row);
      // The roots are taken apart: the product of two squares may be too large or too small.
      const float lengths =
          std::sqrt(product(left, left, width)) * std::sqrt(product(right, right, width));
      *out.row<float>(row) = lengths == 0 ? 0.0f : product(left, right, width) / lengths;
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::cpu {
HWY_EXPORT(cosine_rows);

void cosine_rows(const Context& context, ConstTensorView a, ConstTensorView b, TensorView out) {
  HWY_DYNAMIC_DISPATCH(cosine_rows)(context, a, b, out);
}
}  // namespace kinora::cpu
#endif
