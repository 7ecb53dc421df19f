#include <algorithm>

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

// x and out may be the same.
HWY_NOINLINE void rotate_head(const float* cos, const float* sin, int64_t half, const float* x,
                              float* out) {
  for_vectors(half, [&](auto d, int64_t at, auto part) HWY_ATTR {
    const auto c = part.load(d, cos + at);
    const auto s = part.load(d, sin + at);
    const auto x1 = part.load(d, x + at);
    const auto x2 = part.load(d, x + half + at);
    part.store(d, hn::MulSub(x1, c, hn::Mul(x2, s)), out + at);
    part.store(d, hn::MulAdd(x2, c, hn::Mul(x1, s)), out + half + at);
  });
}

void apply_rope(const Context& context, ConstTensorView cos, ConstTensorView sin, TensorView x) {
  const int64_t heads = x.size(1);
  const int64_t d = x.size(2);
  for_row_ranges(context, x.size(0), heads * d, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        float* const at = x.row<float>(row) + head * x.stride(1);
        rotate_head(cos.row<float>(row), sin.row<float>(row), d / 2, at, at);
      }
    }
  });
}

void rope_split(const Context& context, ConstTensorView cos, ConstTensorView sin,
                ConstTensorView qkv, TensorView queries, TensorView keys, TensorView values) {
  const int64_t d = queries.size(2);
  for_row_ranges(context, qkv.size(0), qkv.size(1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float *c = cos.row<float>(row), *s = sin.row<float>(row);
      const float* from = qkv.row<float>(row);
      const auto turn = [&](const TensorView& to) {
        float* const out = to.row<float>(row);
        for (int64_t head = 0; head < to.size(1); ++head, from += d) {
          rotate_head(c, s, d / 2, from, out + head * to.stride(1));
        }
      };
      turn(queries);
      turn(keys);
      float* const out = values.row<float>(row);
      for (int64_t head = 0; head < values.size(1); ++head, from += d) {
        std::copy_n(from, d, out + head * values.stride(1));
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
HWY_EXPORT(rope_split);

void apply_rope(const Context& context, ConstTensorView cos, ConstTensorView sin, TensorView x) {
  HWY_DYNAMIC_DISPATCH(apply_rope)(context, cos, sin, x);
}
void rope_split(const Context& context, ConstTensorView cos, ConstTensorView sin,
                ConstTensorView qkv, TensorView queries, TensorView keys, TensorView values) {
  HWY_DYNAMIC_DISPATCH(rope_split)(context, cos, sin, qkv, queries, keys, values);
}
}  // namespace kinora::cpu
#endif
