// How long a GPU takes for one call of attention, dense and as a policy would have it done, told by
// its shape alone: a group of few queries, or a model with few and narrow heads, is read before
// lists are made. SparseAttention reads densely where that is expected to be faster. The choice
// never depends on a clock, so that the same prompt is always read in the same way.
#pragma once

#include <cstdint>

namespace kinora {

// One call for some queries, the last of which sees all rows.
struct GpuCall {
  int64_t queries = 0;
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t head_size = 0;
};

// What a policy would have the device do.
struct GpuWorkload {
  double keys = 0;      // in the list of a tile, on average
  int64_t longest = 0;  // in the longest of all lists, where some are much longer
  double measured = 0;  // the share of the queries that read everything besides
  int measures = 0;     // passes of such queries that choose what the others read: 0 or 1
  int probes = 0;       // looks at the last queries, to choose lines
  int plans = 1;        // lists that are made and run one after another
};

// Seconds on one H200; on other cards work takes longer and what precedes it does not, so that
// lists pay off earlier than this says.
double dense_seconds(const GpuCall& call);
double sparse_seconds(const GpuCall& call, const GpuWorkload& work);

}  // namespace kinora
