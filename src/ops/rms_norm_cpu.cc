#include <cmath>

#include "ops/cpu_kernels.h"
#include "ops/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rms_norm_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace kinora::HWY_NAMESPACE;

template <typename T>
HWY_NOINLINE void norm_row(const float* x, const T* weight, int64_t width, float epsilon,
                           float* out) {
  const float squares = sum_over(width, [&](auto d, int64_t at, auto part, auto sum) HWY_ATTR {
    const auto value = part.load(d, x + at);
    return hn::MulAdd(value, value, sum);
  });
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(width) + epsilon);
  for_vectors(width, [&](auto d, int64_t at, auto part) HWY_ATTR {
    const auto normed = hn::Mul(part.load(d, x + at), hn::Set(d, factor));
    part.store(d, hn::Mul(normed, part.load(d, weight + at)), out + at);
  });
}

void rms_norm(const Context& context, ConstTensorView x, ConstTensorView weight, float epsilon,
              TensorView out) {
  const RowOffsets from(x), to(out);
  with_float_type(weight.dtype(), [&]<typename T>(T) {
    const T* weights = weight.data<T>();
    for_row_ranges(context, from.rows(), from.width(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        norm_row(x.data<float>() + from[row], weights, from.width(), epsilon,
                 out.data<float>() + to[row]);
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::cpu {
HWY_EXPORT(rms_norm);

void rms_norm(const Context& context, ConstTensorView x, ConstTensorView weight, float epsilon,
              TensorView out) {
  HWY_DYNAMIC_DISPATCH(rms_norm)(context, x, weight, epsilon, out);
}
}  // namespace kinora::cpu
#endif
