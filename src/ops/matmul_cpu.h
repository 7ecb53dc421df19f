// The CPU side of matmul: two ways to compute one product, chosen by the number of rows, and the
// native bf16 ones. Used by matmul.cc and packed_matmul.cc, and by tests and benchmarks that choose
// the instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/context.h"
#include "base/dtype.h"

namespace kinora::cpu {

// A checked product: out[m, n] = a[m, k] · weight[n, k]ᵀ + bias[n]. Strides are in elements.
struct MatmulWork {
  int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  int64_t a_stride = 0;
  const void* weight = nullptr;
  DType weight_type = DType::f32;
  int64_t weight_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  const float* bias = nullptr;  // null: none
  bool accumulate = false;
};

// Few rows: dot products over weight rows that are read once and widened in registers. Several
// products (of the same few rows, say) are one loop for the threads.
void matmul_rows(const Context& context, std::span<const MatmulWork> products);

// Many rows: cache-blocked product over packed panels.
void matmul_blocked(const Context& context, const MatmulWork& work);

// The same by instructions that multiply bf16 and that not every CPU has; bf16 weights only. With
// `exact` a row of `a` counts as the three rows of bf16 whose sum it is, and the result is as exact
// as in f32; else `a` is rounded to bf16. Numbers too small for a normal f32 may count as zero.
struct Bf16Product {
  std::string_view instructions;
  bool pays = false;            // rounded, it is faster on this CPU than f32
  int64_t exact_rows_from = 0;  // rows from which f32 goes this way, exactly; 0: never
  // Products of the same rows: `a`, m and k are those of the first.
  void (*run)(const Context& context, std::span<const MatmulWork> products, bool exact) = nullptr;
};
// Null where this CPU or its system lacks them.
const Bf16Product* arm_bf16_product();     // BFMMLA
const Bf16Product* amx_bf16_product();     // TDPBF16PS
const Bf16Product* avx512_bf16_product();  // VDPBF16PS
// All that are there.
std::span<const Bf16Product* const> bf16_products();
// The one to use; null: f32 is as fast.
const Bf16Product* best_bf16_product();

// Whether there is one to use, and its product, rounded.
bool bf16_instructions();
void matmul_bf16(const Context& context, const MatmulWork& work);

}  // namespace kinora::cpu
