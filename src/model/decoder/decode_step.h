// The kernels of a decoding step that only a captured graph needs: they find on the device where
// rows go and how many there are. Used by gpu_decoder_cuda.cc.
#pragma once

#include <cstdint>

#include "attention/cuda/decode_cuda.h"
#include "base/context.h"
#include "base/tensor.h"

namespace kinora::cuda {

// cos, sin [tokens, d/2] f32 from positions [tokens, 3] i32 in device memory; frequencies and axes
// of the d/2 columns are in device memory too.
void step_rope_table(const Context& context, const int32_t* positions, const double* frequencies,
                     const int32_t* axes, TensorView cos, TensorView sin);

// Queries and keys of qkv [tokens, (heads + 2 × kv heads) × d] turned; queries go to `queries`
// [tokens, heads, d], keys and values become the last rows of the layer.
void step_rope_append(const Context& context, ConstTensorView cos, ConstTensorView sin,
                      ConstTensorView qkv, TensorView queries, const LayerRows* layer,
                      int64_t kv_heads, DType row_type);

}  // namespace kinora::cuda
