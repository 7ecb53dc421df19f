// The CPU implementations behind the ops, with arguments already checked. Declared in one place
// because each is one function; see the op's public header for what it computes.
#pragma once

#include <cstdint>
#include <span>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora::cpu {

void rms_norm(const Context& context, ConstTensorView x, ConstTensorView weight, float epsilon,
              TensorView out);
void layer_norm(const Context& context, ConstTensorView x, ConstTensorView weight,
                ConstTensorView bias, float epsilon, TensorView out);

void silu(const Context& context, ConstTensorView x, TensorView out);
void silu_mul(const Context& context, ConstTensorView gate, ConstTensorView up, TensorView out);
void gelu_erf(const Context& context, ConstTensorView x, TensorView out);
void gelu_tanh(const Context& context, ConstTensorView x, TensorView out);

void apply_rope(const Context& context, ConstTensorView cos, ConstTensorView sin, TensorView x);
// Keys and values in f32.
void rope_split(const Context& context, ConstTensorView cos, ConstTensorView sin,
                ConstTensorView qkv, TensorView queries, TensorView keys, TensorView values);

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

void pack_rows(const Context& context, ConstTensorView x, TensorView out);
void widen_rows(const Context& context, ConstTensorView rows, TensorView out);

void softmax(const Context& context, ConstTensorView x, TensorView out, float scale);
void cosine_rows(const Context& context, ConstTensorView a, ConstTensorView b, TensorView out);

// −1 when every entry is NaN.
int64_t argmax(const float* x, int64_t n);

void bilinear_pool(const Context& context, ConstTensorView x, TensorView out);
enum class PoolKind { average, max };
void window_pool(const Context& context, ConstTensorView x, int64_t window, PoolKind kind,
                 TensorView out);

}  // namespace kinora::cpu
