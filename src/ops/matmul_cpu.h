// The CPU side of matmul: two ways to compute one product, chosen by the number of rows, and the
// native bf16 one. Used only by matmul.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

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

// The same with a rounded to bf16 and the CPU's bf16 matrix instructions; bf16 weights only, and
// only where bf16_instructions() says so.
bool bf16_instructions();
void matmul_bf16(const Context& context, const MatmulWork& work);

}  // namespace kinora::cpu
