// The formulas of published weights in 8 and 4 bits, as their reference implementations compute
// them: a product in f32, rounded once to the type of the result. Used by quantized_files.cc when a
// model is loaded.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/tensor.h"
#include "base/threads.h"

namespace kinora {

// In AWQ a word holds the columns 0, 2, 4, 6, 1, 3, 5, 7 of its eight. Column → place.
inline constexpr std::array<int, 8> awq_place = {0, 4, 1, 5, 2, 6, 3, 7};

// Scales and zero points of parts of a weight: part (n / rows, k / columns), or of column k the
// group that `column_groups` names.
struct PartScales {
  Tensor scales;                                // f32, bf16 or f16 [down, across]
  Tensor zeros;                                 // i32, the same shape; undefined: none
  int64_t rows = 1;                             // of the weight that share a part
  int64_t columns = 1;                          // likewise
  std::shared_ptr<const Tensor> column_groups;  // i32 [k]; null: k / columns
};

// All give [n, k] of `type`: (q − zero) × scale.
//   weight  u8 [n, k], e4m3
Tensor widen_e4m3(const ThreadPool& threads, const Tensor& weight, const PartScales& parts,
                  DType type);
//   weight  i8 [n, k]
Tensor widen_int8(const ThreadPool& threads, const Tensor& weight, const PartScales& parts,
                  DType type);
//   packed  i32 [n, ⌈k / per word⌉]: `bits` bits each, low ones first, with 2^(bits − 1) added
Tensor widen_packed_rows(const ThreadPool& threads, const Tensor& packed, int bits, int64_t k,
                         const PartScales& parts, DType type);
//   packed  i32 [⌈k / per word⌉, n]: unsigned, low ones first along k; the scales are [groups, n]
Tensor widen_packed_columns(const ThreadPool& threads, const Tensor& packed, int bits, int64_t k,
                            const PartScales& parts, DType type);
//   packed  i32 [k, n / 8]: 4 bits, unsigned, in AWQ's order along n; the scales are [groups, n]
Tensor widen_awq(const ThreadPool& threads, const Tensor& packed, const PartScales& parts,
                 DType type);

// i32 [rows, columns] from words of `bits` bits along the columns (`awq`: in AWQ's order) or along
// the rows, unsigned; `columns` or `rows` counts values, not words.
enum class PackedAlong { columns, columns_awq, rows };
Tensor unpack_words(const Tensor& words, int bits, PackedAlong along, int64_t count);

}  // namespace kinora
