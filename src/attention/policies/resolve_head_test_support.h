// The lines that one head reads, found one region at a time. Used by the tests of tables and of the
// search that makes them.
#pragma once

#include <vector>

#include "attention/plan/line_plan.h"
#include "attention/policies/head_table.h"
#include "attention/search/probe.h"

namespace kinora::testing {

// Sizes are scaled to `length` tokens, indexes are built online from the last queries of each
// modality, as for a table. `regions` are those of the choice's boundary.
inline std::vector<LineIndex> resolve_head(const Context& context, const HeadChoice& choice,
                                           const std::vector<Region>& regions,
                                           const QueryView& queries, const RowSet& rows, int head,
                                           float scale, int64_t length) {
  std::vector<LineIndex> indexes;
  for (const Region& region : regions) {
    const PatternSpec spec = scaled(pattern_for(choice, region), length);
    Probe probe;
    if (spec.kind->needs_probe) {
      probe = probe_region(context, queries, rows, region, head, scale, ProbeOf::each_modality);
    }
    indexes.push_back(resolve(spec, region, probe));
  }
  return indexes;
}

}  // namespace kinora::testing
