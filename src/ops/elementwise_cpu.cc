#include <cstring>

#include "ops/cpu_kernels.h"
#include "ops/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/elementwise_cpu.cc"
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
HWY_NOINLINE void add_run(const float* a, const T* b, float* out, int64_t count) {
  for_vectors(count, [&](auto d, int64_t at, auto part) HWY_ATTR {
    part.store(d, hn::Add(part.load(d, a + at), part.load(d, b + at)), out + at);
  });
}

HWY_NOINLINE void scale_run(const float* x, float factor, float* out, int64_t count) {
  for_vectors(count, [&](auto d, int64_t at, auto part) HWY_ATTR {
    part.store(d, hn::Mul(part.load(d, x + at), hn::Set(d, factor)), out + at);
  });
}

HWY_NOINLINE void narrow_run(const float* x, bf16* out, int64_t count) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<uint16_t, decltype(d)> narrow;
  const auto lanes = static_cast<int64_t>(hn::MaxLanes(d));
  int64_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    // Rounding to nearest even on the bits; NaN gets its quiet bit instead, so that it stays NaN.
    const auto value = hn::LoadU(d, x + at);
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
    const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
    const auto chosen = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet, rounded);
    const auto upper = hn::BitCast(hn::RebindToSigned<decltype(du)>(), hn::ShiftRight<16>(chosen));
    hn::StoreU(hn::DemoteTo(narrow, upper), narrow, reinterpret_cast<uint16_t*>(out + at));
  }
  for (; at < count; ++at) out[at] = bf16::from_float(x[at]);
}

HWY_NOINLINE void narrow_run(const float* x, f16* out, int64_t count) {
  int64_t at = 0;
  if constexpr (converts_f16) {
    const hn::ScalableTag<float> d;
    const hn::Rebind<hwy::float16_t, decltype(d)> narrow;
    const auto lanes = static_cast<int64_t>(hn::MaxLanes(d));
    for (; at + lanes <= count; at += lanes) {
      hn::StoreU(hn::DemoteTo(narrow, hn::LoadU(d, x + at)), narrow,
                 reinterpret_cast<hwy::float16_t*>(out + at));
    }
  }
  for (; at < count; ++at) out[at] = f16::from_float(x[at]);
}

template <typename T>
HWY_NOINLINE void widen_run(const T* x, float* out, int64_t count) {
  for_vectors(count, [&](auto d, int64_t at, auto part)
                         HWY_ATTR { part.store(d, part.load(d, x + at), out + at); });
}

template <typename From, typename To>
void convert_run(const From* x, To* out, int64_t count) {
  if constexpr (std::is_same_v<From, To>) {
    std::memmove(out, x, static_cast<size_t>(count) * sizeof(From));
  } else if constexpr (std::is_same_v<To, float>) {
    widen_run(x, out, count);
  } else if constexpr (std::is_same_v<From, float>) {
    narrow_run(x, out, count);
  } else {
    float buffer[256];
    for (int64_t at = 0; at < count; at += 256) {
      const int64_t piece = std::min<int64_t>(256, count - at);
      widen_run(x + at, buffer, piece);
      narrow_run(buffer, out + at, piece);
    }
  }
}

void add(const Context& context, ConstTensorView a, ConstTensorView b, TensorView out) {
  for_each_run<3>(context, {a, b, out}, [&](const auto& at, int64_t count) {
    add_run(a.data<float>() + at[0], b.data<float>() + at[1], out.data<float>() + at[2], count);
  });
}

void add_bias(const Context& context, ConstTensorView bias, TensorView x) {
  const RowOffsets rows(x);
  with_float_type(bias.dtype(), [&]<typename T>(T) {
    for_row_ranges(context, rows.rows(), rows.width(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* values = x.data<float>() + rows[row];
        add_run(values, bias.data<T>(), values, rows.width());
      }
    });
  });
}

void scale(const Context& context, ConstTensorView x, float factor, TensorView out) {
  for_each_run<2>(context, {x, out}, [&](const auto& at, int64_t count) {
    scale_run(x.data<float>() + at[0], factor, out.data<float>() + at[1], count);
  });
}

void convert(const Context& context, ConstTensorView x, TensorView out) {
  with_float_type(x.dtype(), [&]<typename From>(From) {
    with_float_type(out.dtype(), [&]<typename To>(To) {
      for_each_run<2>(context, {x, out}, [&](const auto& at, int64_t count) {
        convert_run(x.data<From>() + at[0], out.data<To>() + at[1], count);
      });
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::cpu {
HWY_EXPORT(add);
HWY_EXPORT(add_bias);
HWY_EXPORT(scale);
HWY_EXPORT(convert);

void add(const Context& context, ConstTensorView a, ConstTensorView b, TensorView out) {
  HWY_DYNAMIC_DISPATCH(add)(context, a, b, out);
}
void add_bias(const Context& context, ConstTensorView bias, TensorView x) {
  HWY_DYNAMIC_DISPATCH(add_bias)(context, bias, x);
}
void scale(const Context& context, ConstTensorView x, float factor, TensorView out) {
  HWY_DYNAMIC_DISPATCH(scale)(context, x, factor, out);
}
void convert(const Context& context, ConstTensorView x, TensorView out) {
  HWY_DYNAMIC_DISPATCH(convert)(context, x, out);
}
}  // namespace kinora::cpu
#endif
