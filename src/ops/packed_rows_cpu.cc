#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu_kernels.h"
#include "ops/packed_rows.h"
#include "ops/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/packed_rows_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/packed_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace kinora::HWY_NAMESPACE;

constexpr float largest_code(int8_t) { return 127; }
constexpr float largest_code(e4m3) { return 448; }

// The largest |x|; NaN where one is.
HWY_INLINE float largest_of(const float* x, int64_t count) {
  const hn::ScalableTag<float> d;
  auto largest = hn::Zero(d);
  auto sum = hn::Zero(d);  // Σ 0 · x: 0, or NaN
  for_vectors(count, [&](auto tag, int64_t at, auto part) HWY_ATTR {
    const auto value = part.load(tag, x + at);
    largest = hn::Max(largest, hn::Abs(value));
    sum = hn::MulAdd(value, hn::Zero(tag), sum);
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest)) + hn::GetLane(hn::SumOfLanes(d, sum));
}

template <class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> code_of(D, hn::Vec<D> value, int8_t) {
  return hn::NearestInt(value);
}
// Rounds to three bits of fraction, ties to even; below the smallest normal code to multiples of
// 2^-9. The next power of two is the next code in both cases.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> code_of(D d, hn::Vec<D> value, e4m3) {
  const hn::RebindToSigned<D> di;
  const auto magnitude = hn::Min(hn::Abs(value), hn::Set(d, 448.0f));
  const auto bits = hn::BitCast(di, magnitude);
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(di, 1));
  const auto rounded = hn::ShiftRight<20>(hn::Add(bits, hn::Add(odd, hn::Set(di, 0x7ffff))));
  const auto normal = hn::Sub(rounded, hn::Set(di, 120 * 8));
  const auto tiny = hn::NearestInt(hn::Mul(magnitude, hn::Set(d, 0x1p9f)));
  const auto code =
      hn::IfThenElse(hn::RebindMask(di, hn::Lt(magnitude, hn::Set(d, 0x1p-6f))), tiny, normal);
  const auto negative = hn::RebindMask(di, hn::Lt(value, hn::Zero(d)));
  // As a signed byte: −128 sets the sign alone.
  return hn::Add(code, hn::IfThenElseZero(negative, hn::Set(di, -128)));
}

// Columns that share a scale.
template <typename T>
HWY_INLINE bf16 pack_columns(const float* x, int64_t size, int8_t* codes) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<int8_t, decltype(d)> narrow;
  const auto lanes = static_cast<int64_t>(hn::MaxLanes(d));
  // A scale that is rounded leaves the largest element its code: 127 (1 ± 2^-9) rounds to 127.
  const bf16 scale = bf16::from_float(largest_of(x, size) / largest_code(T()));
  const float step = scale.to_float(), factor = 1 / step;
  if (!std::isfinite(step) || !std::isfinite(factor)) {  // 0 · ∞ is NaN when it is read
    std::memset(codes, 0, static_cast<size_t>(size));
    return scale;
  }
  const auto code = [&](auto values) HWY_ATTR {
    return hn::DemoteTo(narrow, code_of(d, hn::Mul(values, hn::Set(d, factor)), T()));
  };
  int64_t at = 0;
  for (; at + lanes <= size; at += lanes) {
    hn::StoreU(code(hn::LoadU(d, x + at)), narrow, codes + at);
  }
  if (at == size) return scale;
  HWY_ALIGN int8_t rest[hn::MaxLanes(d)];
  hn::StoreU(code(load_f32_part(d, x + at, size - at)), narrow, rest);
  std::copy_n(rest, size - at, codes + at);
  return scale;
}

template <typename T>
HWY_NOINLINE void pack_head(const float* x, int64_t size, T* out) {
  auto* codes = reinterpret_cast<int8_t*>(out);
  int8_t* scales = codes + size;
  for (int64_t at = 0; at < size; at += columns_per_scale, scales += sizeof(bf16)) {
    const bf16 scale = pack_columns<T>(x + at, std::min(columns_per_scale, size - at), codes + at);
    std::memcpy(scales, &scale.bits, sizeof(scale.bits));
  }
}

template <typename T>
HWY_NOINLINE void widen_one(const T* row, int64_t size, float* out) {
  widen_head(row, size, out);
}

void pack_rows(const Context& context, ConstTensorView x, TensorView out) {
  const int64_t heads = x.size(1), size = x.size(2);
  with_row_type(out.dtype(), [&]<typename T>(T) {
    if constexpr (is_code<T>) {
      for_row_ranges(context, x.size(0), heads * size, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          for (int64_t head = 0; head < heads; ++head) {
            pack_head(x.row<float>(row) + head * x.stride(1), size,
                      out.row<T>(row) + head * out.stride(1));
          }
        }
      });
    }
  });
}

void widen_rows(const Context& context, ConstTensorView rows, TensorView out) {
  const int64_t heads = out.size(1), size = out.size(2);
  with_row_type(rows.dtype(), [&]<typename T>(T) {
    if constexpr (is_code<T>) {
      for_row_ranges(context, out.size(0), heads * size, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          for (int64_t head = 0; head < heads; ++head) {
            widen_one(rows.row<T>(row) + head * rows.stride(1), size,
                      out.row<float>(row) + head * out.stride(1));
          }
        }
      });
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::cpu {
HWY_EXPORT(pack_rows);
HWY_EXPORT(widen_rows);

void pack_rows(const Context& context, ConstTensorView x, TensorView out) {
  HWY_DYNAMIC_DISPATCH(pack_rows)(context, x, out);
}
void widen_rows(const Context& context, ConstTensorView rows, TensorView out) {
  HWY_DYNAMIC_DISPATCH(widen_rows)(context, rows, out);
}
}  // namespace kinora::cpu
#endif
