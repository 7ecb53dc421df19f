// The ways to compute one product on a GPU, chosen in matmul_cuda.cu. Included by those files, and
// by a benchmark that compares the ways.
#pragma once

#include "ops/cuda_kernels.h"

namespace kinora::cuda {

// bf16 by bf16, up to `skinny_rows` rows of a: the weights are read once, at memory speed. `gated`
// pairs row n of the weights with row n + out.size(1), as gated_matmul does.
constexpr int64_t skinny_rows = 16;
bool skinny_fits(const Context& context, const MatmulWork& work);
void matmul_skinny(const Context& context, const MatmulWork& work, bool gated);

// The same for up to `strips_rows` rows, of products with very many outputs.
constexpr int64_t strips_rows = 48;
bool strips_fit(const Context& context, const MatmulWork& work, bool gated);
void matmul_strips(const Context& context, const MatmulWork& work, bool gated);

// The same for up to 64 rows, of products whose outputs blocks can share at once.
bool tiles_fit(const Context& context, const MatmulWork& work, bool gated);
void matmul_tiles(const Context& context, const MatmulWork& work, bool gated);

// One row, bf16 by bf16: the fastest of all. False, with nothing done, where it does not fit.
bool matmul_stream(const Context& context, const MatmulWork& work, bool gated);

// f32 rows, weights of any type, up to eight rows; `gated` likewise. None of these takes
// memory, so that they can stand in a captured graph.
constexpr int64_t few_rows = 8;
void matmul_few_f32(const Context& context, const MatmulWork& work, bool gated);

// Scales of two factors in e4m3: one for each row of both, or for 128 columns of each row of a and
// for 128 rows by 128 columns of the weights.
struct Fp8Scales {
  enum class Kind : uint8_t { none, rows, blocks } kind = Kind::none;
  const float* a = nullptr;       // [m], or [k / 128, m]
  const float* weight = nullptr;  // [n], or [n / 128, k / 128 rounded up to a multiple of four]
};

// Any number of rows through cuBLASLt: both bf16, or both f32 without any rounding of the factors,
// or both e4m3 (u8) with scales. False when the library does not support these shapes and
// alignments.
bool matmul_blas(const Context& context, const MatmulWork& work, const Fp8Scales& scales = {});

}  // namespace kinora::cuda
