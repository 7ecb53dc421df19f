// Small tools of all vector kernels: loops that vanish, sums over lanes, and loading any stored
// floating-point type as f32 vectors. Included once per Highway target.
#if defined(KINORA_OPS_VECTOR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KINORA_OPS_VECTOR_INL_H
#undef KINORA_OPS_VECTOR_INL_H
#else
#define KINORA_OPS_VECTOR_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace kinora {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class Body, int... index>
HWY_INLINE void repeat_each(Body&& body, std::integer_sequence<int, index...>) {
  (body(std::integral_constant<int, index>()), ...);
}
// body(0) … body(count − 1) with the index a constant, so that arrays of vectors it indexes stay in
// registers. Give the lambda HWY_ATTR.
template <int count, class Body>
HWY_INLINE void repeat(Body&& body) {
  repeat_each(body, std::make_integer_sequence<int, count>());
}

// to[i] = the sum of the lanes of vector(i), i a constant below `count`, each added up in the order
// of SumOfLanes. Give the lambda HWY_ATTR.
template <int count, class D, class Of>
HWY_INLINE void store_sums_of_lanes(D d, const Of& vector, float* to) {
#if HWY_TARGET == HWY_NEON
  constexpr int together = hn::MaxLanes(D()) == 4 ? count / 4 * 4 : 0;
  repeat<together / 4>([&](auto four) HWY_ATTR {
    const auto pair = [&](auto at) HWY_ATTR {
      return vpaddq_f32(vector(at).raw, vector(std::integral_constant<int, at + 1>()).raw);
    };
    constexpr int first = four * 4;
    vst1q_f32(to + first, vpaddq_f32(pair(std::integral_constant<int, first>()),
                                     pair(std::integral_constant<int, first + 2>())));
  });
#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // Up to 16 vectors together, half as many after each add. Where some are missing the last one
  // stands in for them; fewer than three are not worth it.
  constexpr int together = hn::MaxLanes(D()) != 16 ? 0 : count % 16 >= 3 ? count : count / 16 * 16;
  repeat<(together + 15) / 16>([&](auto group) HWY_ATTR {
    // Vectors 4 · i to 4 · i + 3 of the group end in the i-th quarter.
    const auto at = [&](auto quarter, auto place) HWY_ATTR {
      constexpr int index = std::min(group * 16 + quarter * 4 + place, count - 1);
      return vector(std::integral_constant<int, index>()).raw;
    };
    __m512 four[4];
    repeat<4>([&](auto place) HWY_ATTR {
      __m512 halves[2];
      repeat<2>([&](auto half) HWY_ATTR {
        const __m512 a = at(std::integral_constant<int, 2 * half>(), place);
        const __m512 b = at(std::integral_constant<int, 2 * half + 1>(), place);
        halves[half] =
            _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
      });
      four[place] = _mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
                                  _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
    });
    const auto pairs = [&](__m512 a, __m512 b) HWY_ATTR {
      return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    };
    const __m512 first = pairs(four[0], four[1]), second = pairs(four[2], four[3]);
    const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(first, second, 0x88),
                                     _mm512_shuffle_ps(first, second, 0xdd));
    constexpr int left = count - group * 16;
    if constexpr (left >= 16) {
      _mm512_storeu_ps(to + group * 16, all);
    } else {
      _mm512_mask_storeu_ps(to + group * 16, static_cast<__mmask16>((1 << left) - 1), all);
    }
  });
#else
  constexpr int together = 0;
#endif
  repeat<count - together>([&](auto i) HWY_ATTR {
    to[together + i] =
        hn::GetLane(hn::SumOfLanes(d, vector(std::integral_constant<int, together + i>())));
  });
}

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const bf16* from) {
  const hn::Rebind<uint16_t, D> narrow;
  const hn::RebindToUnsigned<D> wide;
  const auto bits = hn::LoadU(narrow, reinterpret_cast<const uint16_t*>(from));
#if HWY_TARGET == HWY_NEON
  if constexpr (hn::MaxLanes(D()) == 4) {  // one instruction for both
    return hn::BitCast(d, hn::Vec<decltype(wide)>(vshll_n_u16(bits.raw, 16)));
  }
#endif
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, bits)));
}
// Whether the target converts f16 in hardware. Highway's own emulation loses infinities and rounds
// differently, so the others convert one by one.
constexpr bool converts_f16 = HWY_TARGET == HWY_NEON || HWY_TARGET <= HWY_AVX2;

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const f16* from) {
  if constexpr (converts_f16) {
    const hn::Rebind<hwy::float16_t, D> narrow;
    return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(from)));
  } else {
    HWY_ALIGN float lanes[hn::MaxLanes(D())];
    for (size_t i = 0; i < hn::MaxLanes(D()); ++i) lanes[i] = from[i].to_float();
    return hn::Load(d, lanes);
  }
}

// Two vectors in a row. (The scalar target, the fallback on old x86 CPUs, has no halves.)
template <class D, typename T>
HWY_INLINE void load_f32_pair(D d, const T* from, hn::Vec<D>& first, hn::Vec<D>& second) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::is_same_v<T, bf16> && hn::MaxLanes(D()) == 4) {
    // One interleave with zeros a vector instead of a promotion and a shift.
    const hn::Repartition<uint16_t, D> narrow;
    const auto bits = hn::LoadU(narrow, reinterpret_cast<const uint16_t*>(from));
    const auto zero = hn::Zero(narrow);
    first = hn::BitCast(d, hn::InterleaveLower(narrow, zero, bits));
    second = hn::BitCast(d, hn::InterleaveUpper(narrow, zero, bits));
    return;
  }
  if constexpr (std::is_same_v<T, f16> && converts_f16) {
    const hn::Repartition<uint16_t, D> narrow;
    const hn::Half<decltype(narrow)> half;
    const hn::Rebind<hwy::float16_t, D> as_f16;
    const auto bits = hn::LoadU(narrow, reinterpret_cast<const uint16_t*>(from));
    first = hn::PromoteTo(d, hn::BitCast(as_f16, hn::LowerHalf(half, bits)));
    second = hn::PromoteTo(d, hn::BitCast(as_f16, hn::UpperHalf(half, bits)));
    return;
  }
#endif
  first = load_f32(d, from);
  second = load_f32(d, from + hn::MaxLanes(D()));
}

// The first `count` (at most a vector) elements; the other lanes are zero.
template <class D, typename T>
HWY_INLINE hn::Vec<D> load_f32_part(D d, const T* from, int64_t count) {
  HWY_ALIGN T lanes[hn::MaxLanes(D())] = {};
  std::copy_n(from, count, lanes);
  return load_f32(d, lanes);
}

template <class D>
HWY_INLINE void store_part(D d, hn::Vec<D> value, float* to, int64_t count) {
  HWY_ALIGN float lanes[hn::MaxLanes(D())];
  hn::Store(value, d, lanes);
  std::copy_n(lanes, count, to);
}

// What a body of for_vectors loads and stores through: whole vectors, or the last, shorter part.
struct WholeVector {
  template <class D, typename T>
  HWY_INLINE hn::Vec<D> load(D d, const T* from) const {
    return load_f32(d, from);
  }
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> value, float* to) const {
    hn::StoreU(value, d, to);
  }
  // The value with lanes that hold no element zeroed, before it enters a sum.
  template <class D>
  HWY_INLINE hn::Vec<D> keep(D, hn::Vec<D> value) const {
    return value;
  }
};
struct PartOfVector {
  int64_t count;
  template <class D, typename T>
  HWY_INLINE hn::Vec<D> load(D d, const T* from) const {
    return load_f32_part(d, from, count);
  }
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> value, float* to) const {
    store_part(d, value, to, count);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> keep(D d, hn::Vec<D> value) const {
    return hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(count)), value);
  }
};

// Calls body(tag, at, part) for every vector of [0, count) f32 elements, the last one perhaps short
// (its missing lanes load as zeros and are not stored). Give the lambda HWY_ATTR.
template <class Body>
HWY_INLINE void for_vectors(int64_t count, Body&& body) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::MaxLanes(d));
  int64_t at = 0;
  for (; at + lanes <= count; at += lanes) body(d, at, WholeVector());
  if (at < count) body(d, at, PartOfVector{count - at});
}

// The sum over all lanes of what body(tag, at, part, sum) → new sum adds up, in four chains.
template <class Body>
HWY_INLINE float sum_over(int64_t count, Body&& body) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::MaxLanes(d));
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  int64_t at = 0;
  for (; at + 4 * lanes <= count; at += 4 * lanes) {
    sum0 = body(d, at, WholeVector(), sum0);
    sum1 = body(d, at + lanes, WholeVector(), sum1);
    sum2 = body(d, at + 2 * lanes, WholeVector(), sum2);
    sum3 = body(d, at + 3 * lanes, WholeVector(), sum3);
  }
  for (; at + lanes <= count; at += lanes) sum0 = body(d, at, WholeVector(), sum0);
  if (at < count) sum1 = body(d, at, PartOfVector{count - at}, sum1);
  const auto total = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  return hn::GetLane(hn::SumOfLanes(d, total));
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora
HWY_AFTER_NAMESPACE();

#endif
