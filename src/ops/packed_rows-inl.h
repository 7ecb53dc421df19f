// One head of a row in 8 bits (packed_rows.h), read into floats. Included once per Highway target.
#if defined(KINORA_OPS_PACKED_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KINORA_OPS_PACKED_ROWS_INL_H
#undef KINORA_OPS_PACKED_ROWS_INL_H
#else
#define KINORA_OPS_PACKED_ROWS_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/packed_rows.h"
#include "ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora {
namespace HWY_NAMESPACE {

template <typename T>
constexpr bool is_code = std::is_same_v<T, int8_t> || std::is_same_v<T, e4m3>;

template <class D>
HWY_INLINE hn::Vec<D> load_codes(D d, const int8_t* from) {
  const hn::Rebind<int8_t, D> narrow;
  const hn::RebindToSigned<D> wide;
  return hn::ConvertTo(d, hn::PromoteTo(wide, hn::LoadU(narrow, from)));
}
// Sign, exponent and fraction of a code moved to their places in a float, whose exponent then is
// 120 too small: a multiplication makes up for that, below the smallest normal code as well.
template <class D>
HWY_INLINE hn::Vec<D> load_codes(D d, const e4m3* from) {
  const hn::Rebind<int8_t, D> narrow;
  const hn::RebindToSigned<D> wide;
  const auto codes = hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const int8_t*>(from)));
  const auto mask = hn::Set(wide, static_cast<int32_t>(0x87f00000u));
  const auto bits = hn::And(hn::ShiftLeft<20>(codes), mask);
  return hn::Mul(hn::BitCast(d, bits), hn::Set(d, 0x1p120f));
}

#if HWY_TARGET != HWY_SCALAR
// Bytes that TableLookupBytesOr0 moves: byte 4 · vector + i to the top of lane i, zeros below it.
HWY_ALIGN constexpr uint8_t top_bytes[4][16] = {
    {128, 128, 128, 0, 128, 128, 128, 1, 128, 128, 128, 2, 128, 128, 128, 3},
    {128, 128, 128, 4, 128, 128, 128, 5, 128, 128, 128, 6, 128, 128, 128, 7},
    {128, 128, 128, 8, 128, 128, 128, 9, 128, 128, 128, 10, 128, 128, 128, 11},
    {128, 128, 128, 12, 128, 128, 128, 13, 128, 128, 128, 14, 128, 128, 128, 15}};

// Codes in the top bytes of whole numbers, times the scale.
template <class D, class V>
HWY_INLINE hn::Vec<D> scaled_top(D d, V top, hn::Vec<D> scale, int8_t) {
  return hn::Mul(hn::ConvertTo(d, hn::ShiftRight<24>(top)), scale);
}
template <class D, class V>
HWY_INLINE hn::Vec<D> scaled_top(D d, V top, hn::Vec<D> scale, e4m3) {
  const hn::RebindToSigned<D> di;
  const auto mask = hn::Set(di, static_cast<int32_t>(0x87f00000u));
  const auto bits = hn::And(hn::ShiftRight<4>(top), mask);
  return hn::Mul(hn::Mul(hn::BitCast(d, bits), hn::Set(d, 0x1p120f)), scale);
}

// Sixteen columns at once where vectors have four lanes: widening them in steps takes longer.
template <typename T>
HWY_INLINE void widen_sixteen(const T* row, hn::Vec<hn::FixedTag<float, 4>> scale, float* out) {
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<int32_t, 4> words;
  const hn::FixedTag<uint8_t, 16> bytes;
  const auto codes = hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(row));
  repeat<4>([&](auto v) HWY_ATTR {
    const auto top =
        hn::BitCast(words, hn::TableLookupBytesOr0(codes, hn::Load(bytes, top_bytes[v])));
    hn::StoreU(scaled_top(d, top, scale, T()), d, out + v * 4);
  });
}
#endif

// row: codes, then scales.  out: [size]
template <typename T>
HWY_INLINE void widen_head(const T* row, int64_t size, float* out) {
  const hn::ScalableTag<float> d;
  constexpr auto lanes = static_cast<int64_t>(hn::MaxLanes(d));
  static_assert(columns_per_scale % lanes == 0);
  const T* scales = row + size;
  int64_t at = 0;
  for (int64_t begin = 0; begin < size; begin += columns_per_scale, scales += sizeof(bf16)) {
    bf16 factor;
    std::memcpy(&factor.bits, scales, sizeof(factor.bits));
    const auto scale = hn::Set(d, factor.to_float());
    const int64_t end = std::min(size, begin + columns_per_scale);
#if HWY_TARGET != HWY_SCALAR
    if constexpr (lanes == 4) {
      for (; at + 16 <= end; at += 16) widen_sixteen(row + at, scale, out + at);
    }
#endif
    for (; at + lanes <= end; at += lanes) {
      hn::StoreU(hn::Mul(load_codes(d, row + at), scale), d, out + at);
    }
    if (at == end) continue;
    HWY_ALIGN T rest[hn::MaxLanes(d)] = {};
    std::copy_n(row + at, end - at, rest);
    store_part(d, hn::Mul(load_codes(d, rest), scale), out + at, end - at);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora
HWY_AFTER_NAMESPACE();

#endif
