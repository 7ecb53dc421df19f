#include <cmath>

#include "ops/cpu_kernels.h"
#include "ops/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/layer_norm_cpu.cc"
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
HWY_NOINLINE void norm_row(const float* x, const T* weight, const T* bias, int64_t width,
                           float epsilon, float* out) {
  const auto count = static_cast<float>(width);
  const float mean = sum_over(width, [&](auto d, int64_t at, auto part, auto sum)
                                         HWY_ATTR { return hn::Add(part.load(d, x + at), sum); }) /
                     count;
  // A second pass over a row that is in cache: the variance of values far from zero stays exact.
  const float squares = sum_over(width, [&](auto d, int64_t at, auto part, auto sum) HWY_ATTR {
    const auto centred = part.keep(d, hn::Sub(part.load(d, x + at), hn::Set(d, mean)));
    return hn::MulAdd(centred, centred, sum);
  });
  const float factor = 1.0f / std::sqrt(squares / count + epsilon);
  for_vectors(width, [&](auto d, int64_t at, auto part) HWY_ATTR {
    const auto centred = hn::Sub(part.load(d, x + at), hn::Set(d, mean));
    const auto normed = hn::Mul(centred, hn::Set(d, factor));
    part.store(d, hn::MulAdd(normed, part.load(d, weight + at), part.load(d, bias + at)), out + at);
  });
}

void layer_norm(const Context& context, ConstTensorView x, ConstTensorView weight,
                ConstTensorView bias, float epsilon, TensorView out) {
  const RowOffsets from(x), to(out);
  with_float_type(weight.dtype(), [&]<typename T>(T) {
    const T* weights = weight.data<T>();
    const T* biases = bias.data<T>();
    for_row_ranges(context, from.rows(), from.width(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        norm_row(x.data<float>() + from[row], weights, biases, from.width(), epsilon,
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
HWY_EXPORT(layer_norm);

void layer_norm(const Context& context, ConstTensorView x, ConstTensorView weight,
                ConstTensorView bias, float epsilon, TensorView out) {
  HWY_DYNAMIC_DISPATCH(layer_norm)(context, x, weight, bias, epsilon, out);
}
}  // namespace kinora::cpu
#endif
