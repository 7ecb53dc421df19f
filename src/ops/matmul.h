// Matrix products with weights as Hugging Face stores them: out = a · weightᵀ (+ bias). The work of
// every projection, feed-forward layer and output head in model/. Weights stay in the type they
// were stored in and are widened on the way into registers or cache, never in memory.
#pragma once

#include <span>

#include "base/context.h"
#include "base/tensor.h"
#include "ops/packed_matrix.h"

namespace kinora {

struct MatmulOptions {
  ConstTensorView bias;      // [n] f32, bf16 or f16; a default view means none
  bool accumulate = false;   // out += the product (residual connections) instead of out =
  bool native_bf16 = false;  // with bf16 weights: round a to bf16 too and use the CPU's bf16
                             // instructions where native_bf16_available(); with packed weights
                             // round a to 8 bits per 32 values (fp8: to bf16); else no effect
};

// out[m, n] = sum over k of a[m, k] × weight[n, k] + bias[n], accumulated in f32.
//   a       [m, k] f32
//   weight  [n, k] f32, bf16 or f16
//   out     [m, n] f32; must not overlap a
// On a GPU a may be bf16 too, with weights of bf16; out may then be f32 or bf16. With a in f32 the
// factors are never rounded, on any device.
// Rows of all three may be strided. A few rows (decoding) read the weights once, at memory speed;
// more rows run a blocked product on all threads. Each element of out is computed in an order that
// does not depend on the number of threads.
void matmul(const Context& context, ConstTensorView a, ConstTensorView weight, TensorView out,
            const MatmulOptions& options = {});

// The same with weights in 4 or 8 bits, on the CPU. Without native_bf16 the result is as exact as
// with the weights widened to f32.
void matmul(const Context& context, ConstTensorView a, const PackedMatrix& weight, TensorView out,
            const MatmulOptions& options = {});

// One of several products of the same input.
struct MatmulPart {
  ConstTensorView weight;                // [n, k]
  ConstTensorView bias;                  // [n]; a default view means none
  TensorView out;                        // [m, n]
  const PackedMatrix* packed = nullptr;  // [n, k] in place of `weight`, on the CPU
};

// The products of `a` with several weights (queries, keys and values; gate and up): as one call of
// matmul for each, but with few rows the threads synchronise once instead of once per weight.
void matmul_parts(const Context& context, ConstTensorView a, std::span<const MatmulPart> parts,
                  bool native_bf16 = false);

// out[m, n] = silu(a · gateᵀ + gate bias) × (a · upᵀ + up bias): the first two products of a gated
// feed-forward layer.
//   a       [m, k] f32, on a GPU also bf16
//   weight  [2n, k]: the rows of gate, then those of up
//   out     [m, n] of a's type; must not overlap a
//   bias    [2n] f32, bf16 or f16; a default view means none
void gated_matmul(const Context& context, ConstTensorView a, ConstTensorView weight, TensorView out,
                  ConstTensorView bias = {});

// Whether a GPU does that in one kernel that takes no memory, so that a captured graph can hold it.
bool gated_in_one_pass(const Context& context, ConstTensorView a, ConstTensorView weight,
                       TensorView out);

// Whether this CPU multiplies bf16 matrices natively and kinora uses it.
bool native_bf16_available();

}  // namespace kinora
