// The kernels of a decoding step that only a captured graph needs: they find on the device where
// rows go and how many there are. Used by steps_cuda.cc.
#pragma once

#include <cstdint>

#include "attention/cuda/decode/decode_cuda.h"
#include "base/context.h"
#include "base/tensor.h"
#include "model/decoder/layers.h"

namespace kinora::cuda {

inline HeadNorms head_norms(const DecoderLayers& layers, int layer) {
  const LayerWeights& weights = layers.weights().layers[static_cast<size_t>(layer)];
  if (!layers.config().qk_norm) return {};
  return {weights.query_norm, weights.key_norm, layers.config().norm_epsilon};
}

// cos, sin [tokens, d/2] f32 from positions [tokens, 3] i32 in device memory; frequencies and axes
// of the d/2 columns are also in device memory.
void step_rope_table(const Context& context, const int32_t* positions, const double* frequencies,
                     const int32_t* axes, TensorView cos, TensorView sin);

// Queries and keys of qkv [tokens, (heads + 2 × kv heads) × d] normed and turned; queries go to
// `queries` [tokens, heads, d], keys and values become the last rows of the own set of each token's
// sequence. `sequences` are those of one layer, in device memory; tokens of none of them are left
// out.
void step_rope_append(const Context& context, ConstTensorView cos, ConstTensorView sin,
                      ConstTensorView qkv, TensorView queries, const DeviceSequence* sequences,
                      int sequence_count, int64_t kv_heads, DType row_type, const HeadNorms& norms);

}  // namespace kinora::cuda
