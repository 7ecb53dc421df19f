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
//
// A row may be the mean of w keys that differ: those that suit a query get more of its attention
// than the others lose, so that together they get more than w times what their mean would get.
// Where the keys' components differ by s (their standard deviation), products differ by t = s |q| /
// √d, and of w normal products
//   ln mean e^x = t² / 2          while t ≤ τ = √(2 ln w): many of them matter
//               = τ (t − τ / 2)   beyond: the largest does, and w of them reach no further
// is added to the score. `spreads` s [rows]; empty: 0.
std::vector<double> attention_mass(const Context& context, ConstTensorView queries,
                                   ConstTensorView keys, int64_t kv_heads,
                                   std::span<const float> log_weights, bool softmax = true,
                                   std::span<const float> spreads = {});

// The same on a GPU for what goes on there: log weights and spreads f32 [rows] lie on it, and so
// does what comes back, f32 [rows]. Only starts the work.
Tensor attention_mass_there(const Context& context, ConstTensorView queries, ConstTensorView keys,
                            int64_t kv_heads, ConstTensorView log_weights, bool softmax = true,
                            ConstTensorView spreads = {});

namespace cuda {
// Queries of each kv head, one after another; there may be room for more than there are.
struct MassQueries {
  int64_t kv_heads = 0;
  int64_t each = 0;  // of a kv head: tokens × heads that share it
  int64_t room = 0;  // for this many
  int64_t in_all() const { return kv_heads * room; }
};
// out [kv heads, room, head size] = scale × queries [tokens, heads, head size]; lengths f32 [kv
// heads, room] of these. Where there is room for more nothing is written.
void arrange_queries(const Context& context, ConstTensorView queries, float scale,
                     const MassQueries& how, TensorView out, TensorView lengths);
// scores f32 [kv heads, room, rows] = queries · keysᵀ, head by head, as `arrange_queries` made
// them, in one launch whatever their numbers are. False, and nothing is done, where the types or
// the numbers are not what the tensor cores take; there is room for whole sixteens of queries.
bool score_keys(const Context& context, ConstTensorView queries, ConstTensorView keys,
                TensorView scores);
// What is added to scores: log weights f32 [rows], and what spreads f32 [rows], where there are
// any, make of lengths f32 [kv heads, room].
struct MassTerms {
  ConstTensorView log_weights, spreads, lengths;
};
// mass [rows] is what scores [kv heads, room, rows] give, with the terms of its row added to each;
// or their plain sums; or that is added to it. `statistics` f32 [kv heads, room, 2] is room to work
// in.
void sum_attention_mass(const Context& context, ConstTensorView scores, const MassQueries& how,
                        const MassTerms& terms, bool softmax, bool add, TensorView statistics,
                        TensorView mass);
}  // namespace cuda

}  // namespace kinora
