// A cheap look at where a head attends: the exact attention of the last queries of a region, summed
// along columns and along diagonals. Vertical-slash and grid decide with it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/plan/region.h"

namespace kinora {

class GridFolds;  // grid_search.h

struct Probe {
  int64_t queries = 0;           // how many were looked at; each gives a total weight of 1
  std::vector<float> columns;    // [rows of the region]: weight of every key
  std::vector<float> diagonals;  // [distance]: weight of all pairs with c − j = distance
  std::shared_ptr<const GridFolds> folds = nullptr;  // set where many grids are searched in it
};

// Whose last queries are looked at in a region that several modalities share.
enum class ProbeOf : uint8_t { region, each_modality };

// A head and a region that it looks at, through the last `count` queries of the region, or of each
// modality in it, that see any of its rows.
struct ProbeRequest {
  const Region* region = nullptr;
  int head = 0;
  ProbeOf of = ProbeOf::region;
  int64_t count = 64;
};

// One probe for each request. Heads that look at the same rows read them together, and all threads
// share the work. `context` is of the CPU.
std::vector<Probe> probe_regions(const Context& context, const QueryView& queries,
                                 const RowSet& rows, float scale,
                                 std::span<const ProbeRequest> requests);

Probe probe_region(const Context& context, const QueryView& queries, const RowSet& rows,
                   const Region& region, int head, float scale, ProbeOf of = ProbeOf::region,
                   int64_t count = 64);

}  // namespace kinora
