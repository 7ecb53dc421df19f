// The CUDA implementations behind the ops, with arguments already checked. See the op's public
// header for what it computes; activations may be f32 or bf16 here. In a build without CUDA
// no_cuda.cc takes their place.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"
#include "ops/cpu_kernels.h"
#include "ops/top_k.h"

namespace kinora {
class PackedStrips;
}

namespace kinora::cuda {

void rms_norm(const Context& context, ConstTensorView x, ConstTensorView weight, float epsilon,
              TensorView out);
void layer_norm(const Context& context, ConstTensorView x, ConstTensorView weight,
                ConstTensorView bias, float epsilon, TensorView out);

void silu(const Context& context, ConstTensorView x, TensorView out);
void silu_mul(const Context& context, ConstTensorView gate, ConstTensorView up, TensorView out);
void gelu_erf(const Context& context, ConstTensorView x, TensorView out);
void gelu_tanh(const Context& context, ConstTensorView x, TensorView out);

// angle[row, i] = positions[row × axes + axis of column i] × frequencies[frequency of column i]
struct RopeColumns {
  std::span<const int64_t> positions;    // [rows, axes]
  std::span<const double> frequencies;   // of every column
  std::span<const int32_t> column_axes;  // of every column
  int64_t axes = 1;
  double factor = 1;
};
void rope_table(const Context& context, const RopeColumns& columns, TensorView cos, TensorView sin);
void apply_rope(const Context& context, ConstTensorView cos, ConstTensorView sin, TensorView x);
// Heads of at most this many pairs of columns.
constexpr int64_t most_turned_pairs = 128;
void rerotate(const Context& context, std::span<const double> frequencies,
              std::span<const int32_t> column_axes,
              std::span<const std::array<int32_t, 3>> differences, TensorView x);
void rope_split(const Context& context, ConstTensorView cos, ConstTensorView sin,
                ConstTensorView qkv, TensorView queries, TensorView keys, TensorView values);

// Rows in 8 bits; numbers are f32 or bf16.
void pack_rows(const Context& context, ConstTensorView x, TensorView out);
void widen_rows(const Context& context, ConstTensorView rows, TensorView out);

void gather_rows(const Context& context, ConstTensorView table, std::span<const int32_t> rows,
                 TensorView out);
void scatter_rows(const Context& context, ConstTensorView x, std::span<const int32_t> rows,
                  TensorView out);
void add_rows(const Context& context, ConstTensorView x, std::span<const int32_t> rows,
              TensorView out);

void add(const Context& context, ConstTensorView a, ConstTensorView b, TensorView out);
void add_bias(const Context& context, ConstTensorView bias, TensorView x);
void scale(const Context& context, ConstTensorView x, float factor, TensorView out);
void convert(const Context& context, ConstTensorView x, TensorView out);

void softmax(const Context& context, ConstTensorView x, TensorView out, float scale);
void cosine_rows(const Context& context, ConstTensorView a, ConstTensorView b, TensorView out);

// −1 for a row in which every entry is NaN.
std::vector<int64_t> argmax_rows(const Context& context, ConstTensorView x);
std::vector<Candidate> top_k(const Context& context, ConstTensorView x, int64_t k);
std::vector<RankedRow> top_k_rows(const Context& context, ConstTensorView x, int64_t k);
// Launches alone, as RankedThere needs them. `room` is rank_room for each row, 8-byte aligned.
struct RankWork {
  ConstTensorView x;  // [rows, columns] f32
  int64_t k = 1;
  std::byte* room = nullptr;
  double* mass = nullptr;     // [rows]
  Candidate* best = nullptr;  // [rows, k]
  int32_t* taken = nullptr;   // [rows]
};
void rank_rows(const Context& context, const RankWork& work);
// Bytes; 0: there are too many columns or candidates.
int64_t rank_room(int64_t columns, int64_t k);
double exp_sum(const Context& context, ConstTensorView x, float highest, double factor);

void bilinear_pool(const Context& context, ConstTensorView x, TensorView out);
void window_pool(const Context& context, ConstTensorView x, int64_t window, cpu::PoolKind kind,
                 TensorView out);

// A checked product on a GPU. `bias` may be empty.
struct MatmulWork {
  ConstTensorView a;       // [m, k] f32 or bf16
  ConstTensorView weight;  // [n, k]
  ConstTensorView bias;    // [n]
  TensorView out;          // [m, n]
  bool accumulate = false;
};
void matmul(const Context& context, const MatmulWork& work);
void gated_matmul(const Context& context, ConstTensorView a, ConstTensorView weight,
                  ConstTensorView bias, TensorView out);
// Whether gated_matmul is one kernel that takes no memory.
bool gated_in_one_pass(const Context& context, ConstTensorView a, ConstTensorView weight,
                       TensorView out);
// work.a is f32, is normed on the way and rounded to bf16. False, with nothing done, if that does
// not fit: more than one row, other types, rows not aligned to 16 bytes, rows that are too long.
bool norm_matmul(const Context& context, const MatmulWork& work, ConstTensorView norm,
                 float epsilon, bool gated);

// The norm of rows that have none yet; a default view means that they do.
struct RowNorm {
  ConstTensorView weight;  // [k]
  float epsilon = 0;
};
// A product with weights in strips, gated where these are paired; work.weight is not looked at.
// With a norm work.a is f32, and false, with nothing done, if the norm cannot be had on the way:
// more than eight rows, other types, rows not aligned to 16 bytes. `split` is the number of blocks
// that share a row of the weights: 1, 2 or 4, or 0 for the usual one.
bool packed_matmul(const Context& context, const MatmulWork& work, const PackedStrips& weight,
                   const RowNorm& norm, int split = 0);
// Some strips as numbers: [rows of these strips, columns] bf16, the second rows of pairs after all
// first ones.
void widen_strips(const Context& context, const PackedStrips& weight, int64_t first, int64_t count,
                  TensorView out);

}  // namespace kinora::cuda
