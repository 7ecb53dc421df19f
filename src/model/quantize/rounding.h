// Rounding of weights to 4 and 8 bits: the nearest code, with a scale for every group that is
// searched for the smallest error. Used by quantize_directory and compensation.h.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "ops/packed_matrix.h"

namespace kinora {

struct Rounding {
  PackedKind kind = PackedKind::int4;
  int64_t group = 0;               // inputs that share a scale
  DType scale_type = DType::bf16;  // scales are rounded to it before codes are
  bool search = true;              // else the largest weight of a group decides

  int64_t groups(int64_t columns) const { return (columns + group - 1) / group; }
};

// The nearest e4m3; what is larger than 448 becomes 448.
uint8_t e4m3_bits(float value);
// The nearest code to a weight that was divided by its scale.
uint8_t nearest_code(PackedKind kind, float value);
// The scale of a group of weights with the smallest squared error. `importance` weighs the errors;
// null: all alike.
float best_scale(const Rounding& rounding, const float* weights, int64_t count,
                 const float* importance);

// One row [columns] → codes [columns] (signed, or e4m3) and scales [groups]. `importance`
// [columns] as above.
void round_row(const Rounding& rounding, const float* row, int64_t columns, const float* importance,
               uint8_t* codes, float* scales);
// What codes stand for.
void unround_row(const Rounding& rounding, const uint8_t* codes, const float* scales,
                 int64_t columns, float* row);

}  // namespace kinora
