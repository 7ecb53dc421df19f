// Rotary position embedding: tables of cosines and sines made once for a run of tokens and shared
// by all layers, and the rotation itself. Angles are computed in double precision, so that
// positions far into a long video stay exact. Scaling rules of a model family (llama3) act on the
// inverse frequencies and live in model/.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// Both [rows, d/2] f32 on the context's device.
struct RopeTable {
  Tensor cos;
  Tensor sin;
};

// 1 / base^(2i/d) for i in [0, d/2), rounded to f32 as Hugging Face keeps them.
std::vector<double> rope_inverse_frequencies(int64_t d, double base);

// One position per row: angle[row, i] = position[row] × inverse_frequency[i].
// `factor` multiplies cosines and sines (the attention factor of some scaling rules).
RopeTable rope_table(const Context& context, std::span<const double> inverse_frequencies,
                     std::span<const int64_t> positions, double factor = 1.0);

// M-RoPE (Qwen2.5-VL, Qwen3-VL): positions are (t, h, w); column i turns by number column_axes[i]
// of the position. One axis for each of the d/2 frequencies.
RopeTable mrope_table(const Context& context, std::span<const double> inverse_frequencies,
                      std::span<const std::array<int64_t, 3>> positions,
                      std::span<const int32_t> column_axes, double factor = 1.0);

// 2-D vision RoPE (Qwen2.5-VL): d/4 frequencies (rope_inverse_frequencies(d/2, 10000)) and
// positions (h, w); columns [0, d/4) of the table turn by h, columns [d/4, d/2) by w.
RopeTable vision_rope_table(const Context& context, std::span<const double> inverse_frequencies,
                            std::span<const std::array<int64_t, 2>> positions);

// Rotates x [rows, heads, d] f32 in place, Hugging Face's rotate-half convention: with x1, x2 the
// two halves of a head, (x1, x2) ← (x1 cos − x2 sin, x2 cos + x1 sin). cos, sin: [rows, d/2] f32.
void apply_rope(const Context& context, ConstTensorView cos, ConstTensorView sin, TensorView x);
inline void apply_rope(const Context& context, const RopeTable& table, TensorView x) {
  apply_rope(context, table.cos, table.sin, x);
}

// Moves stored keys x [rows, heads, d], in any type that rows are kept in, to other positions: each
// row turns on by its difference (Δt, Δh, Δw), in place. Column i turns by number column_axes[i] of
// the difference with frequency inverse_frequencies[i]. Rows kept in 16 or 8 bits are rounded once
// for each move.
void rerotate(const Context& context, std::span<const double> inverse_frequencies,
              std::span<const int32_t> column_axes,
              std::span<const std::array<int32_t, 3>> differences, TensorView x);

// What a fused projection leaves, turned and put in its places in one pass: the first heads of
// every row are queries, then come the keys, then the values.
//   qkv           [rows, (heads + 2 × kv heads) × d] f32, on a GPU also bf16
//   queries       [rows, heads, d] of qkv's type; rotated
//   keys, values  [rows, kv heads, d] f32, bf16, 8 bits (packed_rows.h), on a CPU also f16, both of
//                 one type; keys rotated
void rope_split(const Context& context, ConstTensorView cos, ConstTensorView sin,
                ConstTensorView qkv, TensorView queries, TensorView keys, TensorView values);
inline void rope_split(const Context& context, const RopeTable& table, ConstTensorView qkv,
                       TensorView queries, TensorView keys, TensorView values) {
  rope_split(context, table.cos, table.sin, qkv, queries, keys, values);
}

}  // namespace kinora
