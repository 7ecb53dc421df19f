// Dense attention of a few query rows, looked at key by key: how few keys hold most of it, and what
// share of it a policy's lists hold. Scores are computed on the CPU from copies, in f32, and added
// up in double, on whatever device the tensors lie. Used by bench/attention_bench.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/runner.h"

namespace kinora {

// `wanted` of `count` rows, all over them and in step with nothing; all of them where there are
// fewer. Increasing.
std::vector<int32_t> spread_places(int64_t count, int64_t wanted);

struct SampledAttention {
  int64_t heads = 0;
  std::vector<int32_t> places;   // of the queries that were looked at
  std::vector<double> log_sums;  // ln Σ exp(score) over all rows a query may read, [places, heads]
  // The smallest share of a head's weights that holds `share` of every query's attention: keys that
  // these queries need, over keys that they may read. [heads]
  std::vector<double> needed;
};

// Rows are plain: f32, bf16 or f16, without weights or lists, queries a chain.
SampledAttention sample_attention(const Context& context, const QueryView& queries,
                                  const RowSet& rows, float scale, std::span<const int32_t> places,
                                  double share);

// The share of the attention of the sampled queries that was read, mean over them, [heads].
// `state` lies on the context's device, [queries, heads], and is waited for.
std::vector<double> held_mass(const Context& context, const SampledAttention& sampled,
                              SoftmaxState state);

}  // namespace kinora
