#include "video/convert_kernels.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "video/convert_kernels.cc"
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

HWY_INLINE void store_level(V16 luma, V16 chroma, uint8_t* out) {
  const D16 d;
  const hn::FixedTag<uint8_t, 8> d8;
  const V16 sum = hn::SaturatedAdd(hn::SaturatedAdd(luma, chroma), hn::Set(d, 32));
  hn::StoreU(hn::DemoteTo(d8, hn::ShiftRight<6>(sum)), d8, out);
}

template <typename Sample>
HWY_INLINE void convert_8(const YuvToRgb& factors, const Sample* y, const ChromaTerms& chroma,
                          uint8_t* red, uint8_t* green, uint8_t* blue) {
  const D16 d;
  const V16 value = hn::ShiftLeftSame(hn::Sub(load_8(factors, y), hn::Set(d, factors.luma_zero)),
                                      factors.left_shift);
  const V16 luma = multiply(value, factors.luma);
  store_level(luma, chroma.red, red);
  store_level(luma, chroma.green, green);
  store_level(luma, chroma.blue, blue);
}

template <bool half_chroma, typename Sample>
HWY_INLINE void convert_16(const YuvToRgb& factors, const Sample* y, const Sample* u,
                           const Sample* v, uint8_t* red, uint8_t* green, uint8_t* blue) {
  const D16 d;
  if constexpr (half_chroma) {
    const ChromaTerms terms = chroma_terms(factors, u, v);
    const ChromaTerms low = {hn::InterleaveLower(d, terms.red, terms.red),
                             hn::InterleaveLower(d, terms.green, terms.green),
                             hn::InterleaveLower(d, terms.blue, terms.blue)};
    const ChromaTerms high = {hn::InterleaveUpper(d, terms.red, terms.red),
                              hn::InterleaveUpper(d, terms.green, terms.green),
                              hn::InterleaveUpper(d, terms.blue, terms.blue)};
    convert_8(factors, y, low, red, green, blue);
    convert_8(factors, y + 8, high, red + 8, green + 8, blue + 8);
  } else {
    convert_8(factors, y, chroma_terms(factors, u, v), red, green, blue);
    convert_8(factors, y + 8, chroma_terms(factors, u + 8, v + 8), red + 8, green + 8, blue + 8);
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
