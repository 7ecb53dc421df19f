#include <algorithm>
#include <limits>

#include "ops/cpu_kernels.h"
#include "ops/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/softmax_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/simd_math-inl.h"
#include "ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace kinora::HWY_NAMESPACE;

HWY_NOINLINE float max_of(const float* x, int64_t width) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::MaxLanes(d));
  const float lowest = -std::numeric_limits<float>::infinity();
  auto highest = hn::Set(d, lowest);
  int64_t at = 0;
  for (; at + lanes <= width; at += lanes) highest = hn::Max(highest, hn::LoadU(d, x + at));
  float result = hn::GetLane(hn::MaxOfLanes(d, highest));
  for (; at < width; ++at) result = std::max(result, x[at]);
  return result;
}

HWY_NOINLINE void softmax_row(const float* x, int64_t width, float scale, float* out) {
  const float highest = max_of(x, width);
  if (highest == -std::numeric_limits<float>::infinity()) {
    std::fill_n(out, width, 0.0f);
    return;
  }
  const float sum = sum_over(width, [&](auto d, int64_t at, auto part, auto total) HWY_ATTR {
    const auto below = hn::Sub(part.load(d, x + at), hn::Set(d, highest));
    const auto value = part.keep(d, simd_exp(d, hn::Mul(below, hn::Set(d, scale))));
    part.store(d, value, out + at);
    return hn::Add(total, value);
  });
  const float factor = 1.0f / sum;
  for_vectors(width, [&](auto d, int64_t at, auto part) HWY_ATTR {
    part.store(d, hn::Mul(part.load(d, out + at), hn::Set(d, factor)), out + at);
  });
}

void softmax(const Context& context, ConstTensorView x, TensorView out, float scale) {
  const RowOffsets from(x), to(out);
  for_row_ranges(context, from.rows(), from.width(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      softmax_row(x.data<float>() + from[row], from.width(), scale, out.data<float>() + to[row]);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::cpu {
HWY_EXPORT(softmax);

void softmax(const Context& context, ConstTensorView x, TensorView out, float scale) {
  HWY_DYNAMIC_DISPATCH(softmax)(context, x, out, scale);
}
}  // namespace kinora::cpu
#endif
