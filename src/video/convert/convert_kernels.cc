#include "video/convert/convert_kernels.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "video/convert/convert_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kinora {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// 128 bits at a time: repeating chroma would cross the lanes of wider vectors.
using D16 = hn::FixedTag<int16_t, 8>;
using V16 = hn::Vec<D16>;

HWY_INLINE V16 load_8(const YuvToRgb&, const uint8_t* from) {
  return hn::PromoteTo(D16(), hn::LoadU(hn::FixedTag<uint8_t, 8>(), from));
}

HWY_INLINE V16 load_8(const YuvToRgb& factors, const uint16_t* from) {
  const hn::FixedTag<uint16_t, 8> d;
  return hn::BitCast(D16(), hn::ShiftRightSame(hn::LoadU(d, from), factors.right_shift));
}

HWY_INLINE V16 multiply(V16 value, FixedFactor factor) {
  const D16 d;
  return hn::Add(hn::Mul(value, hn::Set(d, factor.whole)),
                 hn::MulFixedPoint15(value, hn::Set(d, factor.fraction)));
}

struct ChromaTerms {
  V16 red, green, blue;
};

template <typename Sample>
HWY_INLINE ChromaTerms chroma_terms(const YuvToRgb& factors, const Sample* u, const Sample* v) {
  const D16 d;
  const V16 zero = hn::Set(d, factors.chroma_zero);
  const V16 u_value = hn::ShiftLeftSame(hn::Sub(load_8(factors, u), zero), factors.left_shift);
  const V16 v_value = hn::ShiftLeftSame(hn::Sub(load_8(factors, v), zero), factors.left_shift);
  return {multiply(v_value, factors.red_v),
          hn::Add(multiply(u_value, factors.green_u), multiply(v_value, factors.green_v)),
          multiply(u_value, factors.blue_u)};
}

// The luma of 8 pixels with the half that rounds.
template <typename Sample>
HWY_INLINE V16 luma_term(const YuvToRgb& factors, const Sample* y) {
  const D16 d;
  const V16 value = hn::ShiftLeftSame(hn::Sub(load_8(factors, y), hn::Set(d, factors.luma_zero)),
                                      factors.left_shift);
  return hn::Add(multiply(value, factors.luma), hn::Set(d, 32));
}

HWY_INLINE void store_16(V16 low_luma, V16 low_chroma, V16 high_luma, V16 high_chroma,
                         uint8_t* out) {
  const hn::FixedTag<uint8_t, 8> half;
  const hn::FixedTag<uint8_t, 16> full;
  const auto low = hn::ShiftRight<6>(hn::SaturatedAdd(low_luma, low_chroma));
  const auto high = hn::ShiftRight<6>(hn::SaturatedAdd(high_luma, high_chroma));
  hn::StoreU(hn::Combine(full, hn::DemoteTo(half, high), hn::DemoteTo(half, low)), full, out);
}

template <bool half_chroma, typename Sample>
HWY_INLINE void convert_16(const YuvToRgb& factors, const Sample* y, const Sample* u,
                           const Sample* v, uint8_t* red, uint8_t* green, uint8_t* blue) {
  const V16 low = luma_term(factors, y);
  const V16 high = luma_term(factors, y + 8);
  const ChromaTerms first = chroma_terms(factors, u, v);
  if constexpr (half_chroma) {
    const D16 d;
    const auto repeat = [d, low, high](V16 term, uint8_t* out) {
      store_16(low, hn::InterleaveLower(d, term, term), high, hn::InterleaveUpper(d, term, term),
               out);
    };
    repeat(first.red, red);
    repeat(first.green, green);
    repeat(first.blue, blue);
  } else {
    const ChromaTerms second = chroma_terms(factors, u + 8, v + 8);
    store_16(low, first.red, high, second.red, red);
    store_16(low, first.green, high, second.green, green);
    store_16(low, first.blue, high, second.blue, blue);
  }
}

template <bool half_chroma, typename Sample>
HWY_INLINE void convert_row(const YuvToRgb& factors, const Sample* y, const Sample* u,
                            const Sample* v, int width, uint8_t* red, uint8_t* green,
                            uint8_t* blue) {
  constexpr int step = half_chroma ? 2 : 1;
  int x = 0;
  for (; x + 16 <= width; x += 16)
    convert_16<half_chroma>(factors, y + x, u + x / step, v + x / step, red + x, green + x,
                            blue + x);
  if (x == width) return;
  Sample tail[3][16] = {};
  std::copy(y + x, y + width, tail[0]);
  std::copy(u + x / step, u + (width + step - 1) / step, tail[1]);
  std::copy(v + x / step, v + (width + step - 1) / step, tail[2]);
  convert_16<half_chroma>(factors, tail[0], tail[1], tail[2], red + x, green + x, blue + x);
}

template <typename Sample>
void convert_any(const YuvToRgb& factors, const Sample* y, const Sample* u, const Sample* v,
                 bool half_chroma, int width, uint8_t* red, uint8_t* green, uint8_t* blue) {
  // A local copy tells the compiler that stores of bytes do not change the factors.
  const YuvToRgb local = factors;
  if (half_chroma)
    convert_row<true>(local, y, u, v, width, red, green, blue);
  else
    convert_row<false>(local, y, u, v, width, red, green, blue);
}

void convert_bytes(const YuvToRgb& factors, const uint8_t* y, const uint8_t* u, const uint8_t* v,
                   bool half_chroma, int width, uint8_t* red, uint8_t* green, uint8_t* blue) {
  convert_any(factors, y, u, v, half_chroma, width, red, green, blue);
}

void convert_words(const YuvToRgb& factors, const uint16_t* y, const uint16_t* u, const uint16_t* v,
                   bool half_chroma, int width, uint8_t* red, uint8_t* green, uint8_t* blue) {
  convert_any(factors, y, u, v, half_chroma, width, red, green, blue);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kinora
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora {

HWY_EXPORT(convert_bytes);
HWY_EXPORT(convert_words);

FixedFactor FixedFactor::from(double factor) {
  const double whole = std::round(factor);
  return {static_cast<int16_t>(whole), static_cast<int16_t>(std::lround((factor - whole) * 32768))};
}

YuvToRgb YuvToRgb::make(double kr, double kb, bool full_range, int depth, int sample_shift) {
  const int kept = std::min(depth, 14);
  const double unit = std::ldexp(1.0, kept - 8);  // of an 8-bit level, in samples
  YuvToRgb factors;
  factors.right_shift = sample_shift + depth - kept;
  factors.left_shift = 14 - kept;
  factors.luma_zero = static_cast<int16_t>(full_range ? 0 : 16 * unit);
  factors.chroma_zero = static_cast<int16_t>(128 * unit);
  // Full range ends at the largest sample, limited range at 235 and 240 of 8 bits.
  const double full = 255 * unit / (std::ldexp(1.0, kept) - 1);
  const double luma = full_range ? full : 255.0 / 219;
  const double chroma = full_range ? full : 255.0 / 224;
  const double kg = 1 - kr - kb;
  factors.luma = FixedFactor::from(luma);
  factors.red_v = FixedFactor::from(2 * (1 - kr) * chroma);
  factors.green_u = FixedFactor::from(-2 * (1 - kb) * kb / kg * chroma);
  factors.green_v = FixedFactor::from(-2 * (1 - kr) * kr / kg * chroma);
  factors.blue_u = FixedFactor::from(2 * (1 - kb) * chroma);
  return factors;
}

void yuv_row_to_rgb(const YuvToRgb& factors, const uint8_t* y, const uint8_t* u, const uint8_t* v,
                    bool half_chroma, int width, uint8_t* red, uint8_t* green, uint8_t* blue) {
  HWY_DYNAMIC_DISPATCH(convert_bytes)
  (factors, y, u, v, half_chroma, width, red, green, blue);
}

void yuv_row_to_rgb(const YuvToRgb& factors, const uint16_t* y, const uint16_t* u,
                    const uint16_t* v, bool half_chroma, int width, uint8_t* red, uint8_t* green,
                    uint8_t* blue) {
  HWY_DYNAMIC_DISPATCH(convert_words)
  (factors, y, u, v, half_chroma, width, red, green, blue);
}

}  // namespace kinora
#endif
