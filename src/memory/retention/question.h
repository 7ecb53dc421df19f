// The question as seen by rules that choose rows by what it looks at.
#pragma once

#include <cstdint>
#include <vector>

#include "base/tensor.h"

namespace kinora {

// Query rows [rows, heads, head size] where the CPU can read them; they may lie apart. Rows on a
// GPU are waited for.
Tensor queries_on_host(ConstTensorView queries);

// Query rows [rows, heads, head size] added up, [kv heads × head size]: the heads that share a kv
// head, and the rows, are summed. q · k is linear, so the sum of the scores is the score of the
// sum. Rows on a GPU are waited for.
std::vector<double> sum_queries(ConstTensorView queries, int64_t kv_heads);

}  // namespace kinora
