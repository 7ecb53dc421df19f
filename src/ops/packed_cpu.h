// The CPU side of products with packed weights: rows of activations as whole numbers, and kernels
// for one panel of weights. Used only by packed_matmul.cc and the kernels.
//
// A row is written in digits: a span of 128 values (32 where groups are smaller) is a scale times
// numbers of −127 … 127, and what that leaves over is again such a span with a scale 254 times
// smaller. One digit is what 8-bit arithmetic usually means; three are as exact as f32. Digits of
// one row are rows to a kernel.
#pragma once

#include <array>
#include <cstdint>

#include "ops/packed_matrix.h"

namespace kinora::cpu {

constexpr int most_tile_rows = 8;

// A tile of `rows` rows over all (padded) columns.
struct DigitTile {
  const int8_t* values = nullptr;  // [columns / 8][rows][8]
  const float* scales = nullptr;   // [spans][rows]
  const float* sums = nullptr;     // [groups][rows]: of values × scales
};

// One panel of a PackedMatrix.
struct PanelWeights {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;  // [groups][8]
  const float* zeros = nullptr;   // the same, or null: `zero` everywhere
  float zero = 0;
  int64_t blocks = 0;       // of 32 columns
  int64_t span_blocks = 0;  // in one span of the rows; the last span may be shorter
  int64_t group_spans = 0;  // spans that share scales
  // From one panel to the next, for kernels that take several.
  int64_t code_stride = 0;   // bytes
  int64_t scale_stride = 0;  // elements of scales and of zeros
};

// result[rows][8] = the products of a tile's rows with the panel's rows.
using PanelKernel = void (*)(const DigitTile& tile, const PanelWeights& panel, float* result);

// By the rows of the tile; null where a set has no kernel for that many.
struct PanelKernels {
  using ByRows = std::array<PanelKernel, most_tile_rows + 1>;
  ByRows int4{}, int8{};
  // So many panels side by side, result[panel][rows][8]: a core reads several places of memory
  // faster than one.
  static constexpr int64_t several = 4;
  ByRows several_int4{}, several_int8{};
};

// Those for instructions that not every CPU has; null where this one lacks them.
const PanelKernels* arm_dot_kernels();     // SDOT
const PanelKernels* arm_matrix_kernels();  // SMMLA as well
const PanelKernels* vnni_panel_kernels();  // AVX-512 VNNI
// Those that run everywhere.
const PanelKernels& portable_panel_kernels();

// A few rows in f32 times a panel of e4m3: rows [columns / 8][rows][8], rows ≤ 2.
void fp8_panel(const float* values, int rows, const PanelWeights& panel, float* result);
// Arm's FMLAL adds exact products of f16 in f32, and e4m3 becomes f16 by a shift. Rows are written
// as f16 times a scale, and what that leaves over as a second row with a scale 2048 times smaller.
bool fp8_f16_instructions();
constexpr int most_f16_rows = 4;
// values [columns / 8][rows][8] as bits of f16; result[rows][8], without the rows' scales.
void fp8_f16_panel(const uint16_t* values, int rows, const PanelWeights& panel, float* result);

// A panel of e4m3 as numbers: [8, padded columns], rows `stride` elements apart.
void widen_fp8_panel(const PanelWeights& panel, float* out, int64_t stride);
void widen_fp8_panel(const PanelWeights& panel, bf16* out, int64_t stride);

}  // namespace kinora::cpu
