#include "ops/cpu_kernels.h"
#include "ops/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/activation_cpu.cc"
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

struct Silu {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V x) const {
    return hn::Mul(x, simd_sigmoid(d, x));
  }
};

struct GeluErf {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V x) const {
    const V half = hn::Mul(x, hn::Set(d, 0.5f));
    return hn::MulAdd(half, simd_erf(d, hn::Mul(x, hn::Set(d, 0.70710678f))), half);
  }
};

// x / 2 × (1 + tanh u) = x × sigmoid(2u)
struct GeluTanh {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V x) const {
    const V cubic = hn::Mul(hn::Mul(x, x), hn::Set(d, 0.044715f));
    const V u = hn::MulAdd(cubic, x, x);
    return hn::Mul(x, simd_sigmoid(d, hn::Mul(u, hn::Set(d, 1.59576912f))));
  }
};

// Elements of a piece: an exponential costs as much as sixteen elements that are copied.
constexpr int64_t curve_elements = elements_per_piece / 16;

template <class Function>
HWY_NOINLINE void map_run(const float* x, float* out, int64_t count) {
  const Function function;
  for_vectors(count, [&](auto d, int64_t at, auto part)
                         HWY_ATTR { part.store(d, function(d, part.load(d, x + at)), out + at); });
}

HWY_NOINLINE void silu_mul_run(const float* gate, const float* up, float* out, int64_t count) {
  for_vectors(count, [&](auto d, int64_t at, auto part) HWY_ATTR {
    const auto value = Silu()(d, part.load(d, gate + at));
    part.store(d, hn::Mul(value, part.load(d, up + at)), out + at);
  });
}

template <class Function>
void map(const Context& context, ConstTensorView x, TensorView out) {
  const float* from = x.data<float>();
  float* to = out.data<float>();
  for_each_run<2>(
      context, {x, out},
      [&](const auto& at, int64_t count) { map_run<Function>(from + at[0], to + at[1], count); },
      curve_elements);
}

void silu(const Context& context, ConstTensorView x, TensorView out) { map<Silu>(context, x, out); }
void gelu_erf(const Context& context, ConstTensorView x, TensorView out) {
  map<GeluErf>(context, x, out);
}
void gelu_tanh(const Context& context, ConstTensorView x, TensorView out) {
  map<GeluTanh>(context, x, out);
}
void silu_mul(const Context& context, ConstTensorView gate, ConstTensorView up, TensorView out) {
  const float* g = gate.data<float>();
  const float* u = up.data<float>();
  float* to = out.data<float>();
  for_each_run<3>(
      context, {gate, up, out},
      [&](const auto& at, int64_t count) { silu_mul_run(g + at[0], u + at[1], to + at[2], count); },
      curve_elements);
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::cpu {
HWY_EXPORT(silu);
HWY_EXPORT(silu_mul);
HWY_EXPORT(gelu_erf);
HWY_EXPORT(gelu_tanh);

void silu(const Context& context, ConstTensorView x, TensorView out) {
  HWY_DYNAMIC_DISPATCH(silu)(context, x, out);
}
void silu_mul(const Context& context, ConstTensorView gate, ConstTensorView up, TensorView out) {
  HWY_DYNAMIC_DISPATCH(silu_mul)(context, gate, up, out);
}
void gelu_erf(const Context& context, ConstTensorView x, TensorView out) {
  HWY_DYNAMIC_DISPATCH(gelu_erf)(context, x, out);
}
void gelu_tanh(const Context& context, ConstTensorView x, TensorView out) {
  HWY_DYNAMIC_DISPATCH(gelu_tanh)(context, x, out);
}
}  // namespace kinora::cpu
#endif
