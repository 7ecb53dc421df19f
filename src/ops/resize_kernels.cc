#include "ops/resize_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/resize_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kinora {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// 8 × 8 transposition of 16-bit elements; load(i) gives row i, store(i, v) takes column i.
template <typename Load, typename Store>
HWY_INLINE void transpose_8x8(const Load& load, const Store& store) {
  const hn::FixedTag<uint16_t, 8> d16;
  const hn::FixedTag<uint32_t, 4> d32;
  const hn::FixedTag<uint64_t, 2> d64;
  using V = hn::Vec<decltype(d16)>;
  V twos[8];
  for (size_t i = 0; i < 4; ++i) {
    const V a = load(2 * i);
    const V b = load(2 * i + 1);
    twos[2 * i] = hn::InterleaveLower(d16, a, b);
    twos[2 * i + 1] = hn::InterleaveUpper(d16, a, b);
  }
  // twos[2i + h]: rows 2i, 2i + 1 of columns 4h … 4h + 3
  for (size_t h = 0; h < 2; ++h) {
    const auto t0 = hn::BitCast(d32, twos[h]);
    const auto t1 = hn::BitCast(d32, twos[2 + h]);
    const auto t2 = hn::BitCast(d32, twos[4 + h]);
    const auto t3 = hn::BitCast(d32, twos[6 + h]);
    const auto low_a = hn::BitCast(d64, hn::InterleaveLower(d32, t0, t1));
    const auto low_b = hn::BitCast(d64, hn::InterleaveLower(d32, t2, t3));
    const auto high_a = hn::BitCast(d64, hn::InterleaveUpper(d32, t0, t1));
    const auto high_b = hn::BitCast(d64, hn::InterleaveUpper(d32, t2, t3));
    store(4 * h, hn::BitCast(d16, hn::InterleaveLower(d64, low_a, low_b)));
    store(4 * h + 1, hn::BitCast(d16, hn::InterleaveUpper(d64, low_a, low_b)));
    store(4 * h + 2, hn::BitCast(d16, hn::InterleaveLower(d64, high_a, high_b)));
    store(4 * h + 3, hn::BitCast(d16, hn::InterleaveUpper(d64, high_a, high_b)));
  }
}

HWY_INLINE hn::Vec<hn::FixedTag<uint16_t, 8>> load_16(const uint8_t* from) {
  return hn::BitCast(hn::FixedTag<uint16_t, 8>(), hn::LoadU(hn::FixedTag<uint8_t, 16>(), from));
}

HWY_INLINE void store_16(hn::Vec<hn::FixedTag<uint16_t, 8>> value, uint8_t* to) {
  const hn::FixedTag<uint8_t, 16> d8;
  hn::StoreU(hn::BitCast(d8, value), d8, to);
}

void transpose_band(const uint8_t* rows, size_t row_stride, int pairs, uint8_t* out) {
  for (size_t pair = 0; pair < static_cast<size_t>(pairs); pair += 8)
    for (size_t half = 0; half < 2; ++half)
      transpose_8x8(
          [&](size_t i) { return load_16(rows + (8 * half + i) * row_stride + 2 * pair); },
          [&](size_t i, auto v) { store_16(v, out + (pair + i) * 32 + 16 * half); });
}

void untranspose_band(const uint8_t* in, int width, uint8_t* out, size_t pair_stride) {
  for (size_t x = 0; x < static_cast<size_t>(width); x += 8)
    transpose_8x8([&](size_t i) { return load_16(in + (x + i) * 16); },
                  [&](size_t i, auto v) { store_16(v, out + i * pair_stride + 2 * x); });
}

// 16 sums; pair(p) points to the 32 bytes of pair p.
template <typename Pair>
HWY_INLINE void filter_16(const Pair& pair, const int16_t* HWY_RESTRICT weights, int pairs,
                          int shift, uint8_t* HWY_RESTRICT out) {
  const hn::CappedTag<int32_t, 16> d32;
  const hn::Repartition<int16_t, decltype(d32)> d16;
  const hn::Rebind<uint8_t, decltype(d16)> d8;
  const hn::Rebind<uint8_t, decltype(d32)> d8_out;
  using V32 = hn::Vec<decltype(d32)>;
  constexpr size_t lanes = hn::MaxLanes(d32);
  constexpr size_t parts = 16 / lanes;
  V32 even[parts];
  V32 odd[parts];
  for (size_t i = 0; i < parts; ++i) even[i] = odd[i] = hn::Zero(d32);
  for (int p = 0; p < pairs; ++p) {
    int32_t both = 0;
    hwy::CopyBytes<4>(weights + 2 * p, &both);
    const auto weight = hn::BitCast(d16, hn::Set(d32, both));
    const uint8_t* HWY_RESTRICT from = pair(p);
    for (size_t i = 0; i < parts; ++i) {
      const auto pixels = hn::PromoteTo(d16, hn::LoadU(d8, from + 2 * lanes * i));
      even[i] = hn::ReorderWidenMulAccumulate(d32, pixels, weight, even[i], odd[i]);
    }
  }
  const V32 half = hn::Set(d32, (1 << shift) >> 1);
  for (size_t i = 0; i < parts; ++i) {
    const V32 sum = hn::RearrangeToOddPlusEven(even[i], odd[i]);
    const V32 rounded = hn::ShiftRightSame(hn::Add(sum, half), shift);
    hn::StoreU(hn::DemoteTo(d8_out, rounded), d8_out, out + lanes * i);
  }
}

void filter_band(const ResizeAxis& axis, const uint8_t* in, uint8_t* out) {
  for (int x = 0; x < axis.target; ++x) {
    const auto at = static_cast<size_t>(x);
    const uint8_t* first = in + static_cast<size_t>(axis.first_pair[at]) * 32;
    filter_16([first](int p) { return first + p * 32; },
              axis.weights.data() + axis.weight_begin[at], axis.pairs(x), axis.shift,
              out + at * 16);
  }
}

void filter_pairs(const uint8_t* const* in, const int16_t* weights, int pairs, int shift, int width,
                  uint8_t* out) {
  for (int x = 0; x < width; x += 16)
    filter_16([in, x](int p) { return in[p] + 2 * x; }, weights, pairs, shift, out + x);
}

void unpack_rgb(const uint8_t* packed, int width, uint8_t* red, uint8_t* green, uint8_t* blue) {
  const hn::FixedTag<uint8_t, 16> d;
  int x = 0;
  for (; x + 16 <= width; x += 16) {
    hn::Vec<decltype(d)> r, g, b;
    hn::LoadInterleaved3(d, packed + 3 * x, r, g, b);
    hn::StoreU(r, d, red + x);
    hn::StoreU(g, d, green + x);
    hn::StoreU(b, d, blue + x);
  }
  for (; x < width; ++x) {
    red[x] = packed[3 * x];
    green[x] = packed[3 * x + 1];
    blue[x] = packed[3 * x + 2];
  }
}

void pack_rgb(const uint8_t* red, const uint8_t* green, const uint8_t* blue, int width,
              uint8_t* packed) {
  const hn::FixedTag<uint8_t, 16> d;
  int x = 0;
  for (; x + 16 <= width; x += 16)
    hn::StoreInterleaved3(hn::LoadU(d, red + x), hn::LoadU(d, green + x), hn::LoadU(d, blue + x), d,
                          packed + 3 * x);
  for (; x < width; ++x) {
    packed[3 * x] = red[x];
    packed[3 * x + 1] = green[x];
    packed[3 * x + 2] = blue[x];
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kinora
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora {

HWY_EXPORT(transpose_band);
HWY_EXPORT(untranspose_band);
HWY_EXPORT(filter_band);
HWY_EXPORT(filter_pairs);
HWY_EXPORT(unpack_rgb);
HWY_EXPORT(pack_rgb);

void transpose_band(const uint8_t* rows, size_t row_stride, int pairs, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(transpose_band)(rows, row_stride, pairs, out);
}
void untranspose_band(const uint8_t* in, int width, uint8_t* out, size_t pair_stride) {
  HWY_DYNAMIC_DISPATCH(untranspose_band)(in, width, out, pair_stride);
}
void filter_band(const ResizeAxis& axis, const uint8_t* in, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(filter_band)(axis, in, out);
}
void filter_pairs(const uint8_t* const* in, const int16_t* weights, int pairs, int shift, int width,
                  uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(filter_pairs)(in, weights, pairs, shift, width, out);
}
void unpack_rgb(const uint8_t* packed, int width, uint8_t* red, uint8_t* green, uint8_t* blue) {
  HWY_DYNAMIC_DISPATCH(unpack_rgb)(packed, width, red, green, blue);
}
void pack_rgb(const uint8_t* red, const uint8_t* green, const uint8_t* blue, int width,
              uint8_t* packed) {
  HWY_DYNAMIC_DISPATCH(pack_rgb)(red, green, blue, width, packed);
}

}  // namespace kinora
#endif
