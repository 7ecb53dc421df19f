// What some rows get of the attention of a question, without running it: memories that choose what
// to read or to keep rank rows, or clusters of rows, by it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// For each row, Σ over queries and their heads of softmax over all rows of q · k / √d + ln w; a log
// weight of −∞ leaves a row out. Without `softmax` the plain Σ q · k. On a GPU this waits.
//   queries f32 [tokens, heads, head size]; keys f32, or bf16 on a GPU, [rows, kv heads × head
//   size], whose rows may lie apart; both on the context's device; log_weights [rows]
std::vector<double> attention_mass(const Context& context, ConstTensorView queries,
                                   ConstTensorView keys, int64_t kv_heads,
                                   std::span<const float> log_weights, bool softmax = true);

// The same on a GPU for what goes on there: log weights f32 [rows] lie on it, and so does what
// comes back, f32 [rows]. Only starts the work.
Tensor attention_mass_there(const Context& context, ConstTensorView queries, ConstTensorView keys,
                            int64_t kv_heads, ConstTensorView log_weights, bool softmax = true);

namespace cuda {
// out [kv heads, tokens × shared heads, head size] = scale × queries [tokens, heads, head size]
void arrange_queries(const Context& context, ConstTensorView queries, float scale, TensorView out);
// mass [rows] += what scores [queries, rows] give, with the log weight of its row added to each; or
// their plain sums.
void add_attention_mass(const Context& context, ConstTensorView scores, ConstTensorView log_weights,
                        bool softmax, TensorView mass);
}  // namespace cuda

}  // namespace kinora
