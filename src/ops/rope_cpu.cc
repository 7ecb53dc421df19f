#include "ops/cpu_kernels.h"
#include "ops/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rope_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace kinora::HWY_NAMESPACE;

HWY_NOINLINE void rotate_head(const float* cos, const float* sin, int64_t half, float* x) {
  for_vectors(half, [&](auto d, int64_t at, auto part) HWY_ATTR {
    const auto c = part.load(d, cos + at);
    const auto s = part.load(d, sin + at);
    const auto x1 = part.load(d, x + at);
    const auto x2 = part.load(d, x + half + at);
    part.store(d, hn::MulSub(x1, c, hn::Mul(x2, s)), x + at);
    part.store(d, hn::MulAdd(x2, c, hn::Mul(x1, s)), x + half + at);
  });
}

void apply_rope(const Context& context, ConstTensorView cos, ConstTensorView sin, TensorView x) {
  const int64_t heads = x.size(1);
  const int64_t d = x.size(2);
  for_row_ranges(context, x.size(0), heads * d, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        rotate_head(cos.row<float>(row), sin.row<float>(row), d / 2,
                    x.row<float>(row) + head * x.stride(1));
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::cpu {
HWY_EXPORT(apply_rope);

void apply_rope(const Context& context, ConstTensorView cos, ConstTensorView sin, TensorView x) {
  HWY_DYNAMIC_DISPATCH(apply_rope)(context, cos, sin, x);
}
}  // namespace kinora::cpu
#endif
