#include "model/quantize/rounding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace kinora {
namespace {

float stored(DType type, float scale) {
  switch (type) {
    case DType::bf16:
      return bf16::from_float(scale).to_float();
    case DType::f16:
      return f16::from_float(scale).to_float();
    default:
      return scale;
  }
}

// To a whole number, ties to even, for |x| < 2^22.
inline float rounded(float x) {
  constexpr float magic = 12582912.0f;
  return (x + magic) - magic;
}

struct Range {
  float low, high;
};
Range range_of(PackedKind kind) {
  return kind == PackedKind::int4 ? Range{-8, 7} : Range{-128, 127};
}

// The squared error of a group with this scale.
float error_of(PackedKind kind, const float* row, int64_t count, const float* importance,
               float scale) {
  float error = 0;
  if (kind == PackedKind::fp8) {
    for (int64_t i = 0; i < count; ++i) {
      const float left = e4m3_value(e4m3_bits(row[i] / scale)) * scale - row[i];
      error += left * left * (importance ? importance[i] : 1.0f);
    }
    return error;
  }
  const Range range = range_of(kind);
  const float inverse = 1 / scale;
  for (int64_t i = 0; i < count; ++i) {
    const float code = rounded(std::clamp(row[i] * inverse, range.low, range.high));
    const float left = code * scale - row[i];
    error += left * left * (importance ? importance[i] : 1.0f);
  }
  return error;
}

// Shares of the plain scale that are tried. Integers may clip a little; e4m3 only moves the places
// where it is fine.
struct Candidates {
  int count;
  float first, step;
};
Candidates candidates_of(PackedKind kind) {
  switch (kind) {
    case PackedKind::int4:
      return {24, 1.0f, -0.02f};
    case PackedKind::int8:
      return {8, 1.0f, -0.02f};
    default:
      return {8, 1.0f, 0.12f};
  }
}

}  // namespace

uint8_t e4m3_bits(float value) {
  const uint32_t all = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(all >> 24 & 0x80);
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7f);
  const float magnitude = std::min(std::abs(value), 448.0f);
  if (magnitude < 0x1p-6f) {
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(rounded(magnitude * 0x1p9f)));
  }
  uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  bits += 0x7ffffu + (bits >> 20 & 1u);  // to three places of the fraction
  return static_cast<uint8_t>(sign | ((bits >> 20) - (120u << 3)));
}

uint8_t nearest_code(PackedKind kind, float value) {
  if (kind == PackedKind::fp8) return e4m3_bits(value);
  const Range range = range_of(kind);
  return static_cast<uint8_t>(static_cast<int>(rounded(std::clamp(value, range.low, range.high))));
}

float best_scale(const Rounding& rounding, const float* weights, int64_t count,
                 const float* importance) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(weights[i]));
  const float plain =
      largest / (rounding.kind == PackedKind::fp8 ? 448.0f : range_of(rounding.kind).high);
  float best = stored(rounding.scale_type, plain);
  // A group of zeros, or one too small for the scale's type.
  if (!(best > 0)) best = stored(rounding.scale_type, 1.0f);
  if (!rounding.search || !(plain > 0)) return best;
  const Candidates tried = candidates_of(rounding.kind);
  float least = std::numeric_limits<float>::infinity();
  for (int i = 0; i < tried.count; ++i) {
    const float share = tried.first + static_cast<float>(i) * tried.step;
    const float scale = stored(rounding.scale_type, plain * share);
    if (!(scale > 0)) continue;
    const float error = error_of(rounding.kind, weights, count, importance, scale);
    if (error < least) {
      least = error;
      best = scale;
    }
  }
  return best;
}

void round_row(const Rounding& rounding, const float* row, int64_t columns, const float* importance,
               uint8_t* codes, float* scales) {
  for (int64_t begin = 0, group = 0; begin < columns; begin += rounding.group, ++group) {
    const int64_t count = std::min(rounding.group, columns - begin);
    scales[group] =
        best_scale(rounding, row + begin, count, importance ? importance + begin : nullptr);
    for (int64_t i = 0; i < count; ++i) {
      codes[begin + i] = nearest_code(rounding.kind, row[begin + i] / scales[group]);
    }
  }
}

void unround_row(const Rounding& rounding, const uint8_t* codes, const float* scales,
                 int64_t columns, float* row) {
  for (int64_t i = 0; i < columns; ++i) {
    const float scale = scales[i / rounding.group];
    row[i] =
        (rounding.kind == PackedKind::fp8 ? e4m3_value(codes[i])
                                          : static_cast<float>(static_cast<int8_t>(codes[i]))) *
        scale;
  }
}

}  // namespace kinora
