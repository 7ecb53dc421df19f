// Queries, keys and values in e4m3 for attention in FP8, as fp8_layout.h lays them out. Private to
// attention/.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "base/context.h"
#include "base/tensor.h"

namespace kinora::fp8_attention {

// A number is its code times its scale: a scale for each query and head, and one for the keys and
// one for the values of each kv head. e4m3 has an exponent of its own and keeps its precision down
// to 1/28,672 of the largest number of a kv head, so that scales of single blocks would gain
// nothing.
struct Fp8Rows {
  Tensor queries;       // u8 [queries, heads, 128], turned
  Tensor query_scales;  // f32 [queries, heads]
  Tensor keys;          // u8 [kv heads, pieces, 4096], turned
  Tensor values;        // u8 [kv heads, pieces, 4096]
  Tensor scales;        // f32 [2, kv heads]: of keys, of values
  int64_t pieces = 0;   // of a kv head
};

// Queries f32 or bf16, rows bf16, head size 128, laid out for the Hopper kernel. Launches only.
Fp8Rows round_rows(const Context& context, const ConstTensorView& queries, const RowSet& rows);

}  // namespace kinora::fp8_attention
