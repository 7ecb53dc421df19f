// The inner loops of probe_regions (search/probe.h) on the CPU. Private to attention/.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/plan/region.h"
#include "attention/search/probe.h"

namespace kinora::attention_cpu {

// Heads of one kv head that look at one region through the same of its queries.
struct Look {
  const Region* region = nullptr;
  int64_t kv_head = 0;
  std::vector<int32_t> places;  // of the queries in the region, increasing; each sees some row
  std::vector<int32_t> heads;
  std::vector<Probe*> probes;  // of the heads; sums of the right sizes, all 0
};

// Adds up the exact attention of the looks along columns and diagonals. All threads share each
// look: its rows are cut into blocks, twice, first for the sums of the softmax, then for the
// weights, so that no more than a block's scores exist at once. Results do not depend on the number
// of threads.
void run_looks(const Context& context, const QueryView& queries, const RowSet& rows, float scale,
               std::span<const Look> looks);

}  // namespace kinora::attention_cpu
