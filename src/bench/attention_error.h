// How far attention's output is from that of exact arithmetic, in bf16 and in FP8. Used by
// cli/commands/bench_attention.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/context.h"
#include "bench/attention_bench.h"

namespace kinora::cli {

// ‖output − exact‖ / ‖exact‖ over the last queries, dense.
struct AttentionError {
  std::string keys;  // what kind they are
  double bf16 = 0;
  double fp8 = 0;
};

// Over `tokens` rows: normal numbers; normal ones where a few columns of the keys stand out; and
// rows as models have them (VideoKeys). Exact means in f64, from the same bf16 rows. On a
// Hopper GPU.
std::vector<AttentionError> attention_errors(const Context& context,
                                             const AttentionBenchOptions& options, int64_t tokens);

}  // namespace kinora::cli
