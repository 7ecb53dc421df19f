#include "attention/search/plan_work.h"

#include <algorithm>

#include "attention/search/grid_search.h"

namespace kinora {

PlanWork work_of(const Plan& plan, const QueryView& queries, const RowSet& rows) {
  PlanWork work;
  work.attended = static_cast<double>(attended_pairs(plan, queries, rows));
  for (const Tile& tile : plan.tiles) {
    int64_t keys = 0, scattered = 0;
    for (int64_t i = tile.segment_begin; i < tile.segment_end; ++i) {
      const Segment& segment = plan.segments[static_cast<size_t>(i)];
      keys += segment.count;
      if (segment.stride != 1) scattered += segment.count;
    }
    work.pairs += static_cast<double>(keys * tile.queries() * tile.heads);
    work.keys += static_cast<double>(keys);
    work.scattered += static_cast<double>(scattered);
    work.tiles += 1;
    work.segments += static_cast<double>(tile.segment_end - tile.segment_begin);
    work.longest = std::max(work.longest, static_cast<double>(keys));
  }
  return work;
}

LookWork look_of(const PatternSpec& spec, const Region& region, const Probe& probe) {
  LookWork work;
  if (!spec.kind->needs_probe || probe.queries == 0) return work;
  const auto lines = static_cast<double>(probe.columns.size() + probe.diagonals.size());
  work.looks = 1;
  work.pairs = static_cast<double>(probe.queries) * static_cast<double>(region.row_count());
  if (spec.kind->look) {
    const GridLook grid = spec.kind->look(spec.sizes);
    const int32_t strides =
        grid.stride > 0 ? 1 : largest_stride(region, grid.most_stride) - least_stride + 1;
    work.folded = lines * strides;
  } else {
    work.ranked = lines;
  }
  return work;
}

}  // namespace kinora
