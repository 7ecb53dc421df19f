// The kernels that only a tree growing on the device needs (device_tree.h).
#pragma once

#include <cstdint>

#include "base/context.h"
#include "base/tensor.h"
#include "ops/top_k.h"

namespace kinora::cuda {

// What the device knows of a tree. Tokens are the nodes that the draft ran, `width` a level, in the
// order of the levels; candidates are all nodes, `width` after the newest token and then `width`
// after every token.
struct TreeTables {
  int32_t* ids = nullptr;      // [tokens]
  int32_t* parents = nullptr;  // [tokens] which token of the level above it follows; −1: the newest
                               // one of the text
  uint64_t* masks = nullptr;    // [tokens] bit i: token i is an ancestor, or itself
  int32_t* chosen = nullptr;    // [tokens] which candidate it is
  float* confidence = nullptr;  // [tokens] log-probability of the whole path
  int32_t* guesses = nullptr;   // [candidates] tokens of the target; −1: there is none
  float* likely = nullptr;      // [candidates] log-probability after the one before
};

// One level: what was ranked after the newest token (level 0) or after each token of level
// `level` − 1 become candidates, and the likeliest of them the tokens of this level, in the order
// of the candidates; of equals the earlier one. `names` are the target's tokens by the draft's;
// null: they are the same. The last level has no tokens.
void grow_tree(const Context& context, const RankedThere& ranked, const int32_t* names,
               int64_t level, bool last, const TreeTables& tree);

// What the draft reads of some tokens: left[i] = table[ids[i]], right[i] = states[parents[i]], or
// `newest` where there is no parent.
//   table [vocabulary, hidden], states [any, hidden] f32; left and right [tokens, hidden]
struct TreeInput {
  ConstTensorView table;
  ConstTensorView states;
  const float* newest = nullptr;
  const int32_t* ids = nullptr;
  const int32_t* parents = nullptr;
};
void join_rows(const Context& context, const TreeInput& input, TensorView left, TensorView right);

}  // namespace kinora::cuda
