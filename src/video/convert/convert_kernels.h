// YUV to RGB for one row, in 16-bit fixed point with 6 bits after the point: the same integers on
// every instruction set, within 1/32 of a level of the real numbers before the final rounding.
// Used by video/convert_rows.
#pragma once

#include <cstdint>

namespace kinora {

// A real factor as whole + fraction / 2^15, |fraction| ≤ 1/2.
struct FixedFactor {
  int16_t whole = 0;
  int16_t fraction = 0;

  static FixedFactor from(double factor);
};

// red = luma × y + red_v × v, green = luma × y + green_u × u + green_v × v,
// blue = luma × y + blue_u × u, where y, u, v are samples less their zero.
struct YuvToRgb {
  int16_t luma_zero = 0;    // in sample units of at most 14 bits
  int16_t chroma_zero = 0;  // likewise
  int left_shift = 0;       // sample units to 6 bits after the point of an 8-bit level
  int right_shift = 0;      // of 16-bit samples before anything else
  FixedFactor luma;
  FixedFactor red_v;
  FixedFactor green_u;
  FixedFactor green_v;
  FixedFactor blue_u;

  // `kr` and `kb` are the matrix' weights of red and blue in luma.
  static YuvToRgb make(double kr, double kb, bool full_range, int depth, int sample_shift);
};

// Three planes of samples to three planes of RGB. `half_chroma`: one chroma sample for two pixels.
// Reads only the row itself; writes up to 15 bytes past `width`.
void yuv_row_to_rgb(const YuvToRgb& factors, const uint8_t* y, const uint8_t* u, const uint8_t* v,
                    bool half_chroma, int width, uint8_t* red, uint8_t* green, uint8_t* blue);
void yuv_row_to_rgb(const YuvToRgb& factors, const uint16_t* y, const uint16_t* u,
                    const uint16_t* v, bool half_chroma, int width, uint8_t* red, uint8_t* green,
                    uint8_t* blue);

}  // namespace kinora
