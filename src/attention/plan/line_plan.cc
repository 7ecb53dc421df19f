#include "attention/plan/line_plan.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"

namespace kinora {
namespace {

bool grid(const LineIndex& index) {
  return !index.vertical.empty() || !index.slash.empty() || !index.horizontal.empty();
}

void check_index(const LineIndex& index) {
  if (grid(index) && index.stride < 1) {
    throw Error(ErrorKind::bad_input,
                fmt::format("attention grid: a stride of {}; it must be at least 1", index.stride));
  }
  for (const auto* phases : {&index.vertical, &index.slash, &index.horizontal}) {
    for (size_t i = 0; i < phases->size(); ++i) {
      const int32_t phase = (*phases)[i];
      if (phase < 0 || phase >= index.stride) {
        throw Error(ErrorKind::bad_input, "attention grid: a phase that is not below the stride");
      }
      if (i > 0 && phase <= (*phases)[i - 1]) {
        throw Error(ErrorKind::bad_input, "attention grid: phases that do not increase");
      }
    }
  }
  if (std::min({index.sink, index.local, index.segment, index.bottom}) < 0) {
    throw Error(ErrorKind::bad_input, "attention pattern: a size below zero");
  }
}

bool reads_everything(const Region& region, const LineIndex& index, size_t place) {
  if (index.everything) return true;
  if (place + static_cast<size_t>(index.bottom) >= region.queries.size()) return true;
  if (index.horizontal.empty()) return false;
  const int32_t phase = region.query_coordinates[place] % index.stride;
  return std::binary_search(index.horizontal.begin(), index.horizontal.end(), phase);
}

void cut(std::vector<int32_t> queries, int64_t size, std::vector<std::vector<int32_t>>& tiles) {
  for (size_t begin = 0; begin < queries.size(); begin += static_cast<size_t>(size)) {
    const size_t end = std::min(queries.size(), begin + static_cast<size_t>(size));
    tiles.emplace_back(queries.begin() + static_cast<int64_t>(begin),
                       queries.begin() + static_cast<int64_t>(end));
  }
}

// Distances of the slashes as ranges without gaps, the farthest first: in this order the keys of a
// tile come out sorted.
std::vector<TileReads::Range> slash_runs(const LineIndex& index) {
  std::vector<TileReads::Range> runs;
  for (auto distance = index.slashes.rbegin(); distance != index.slashes.rend(); ++distance) {
    if (!runs.empty() && runs.back().begin == *distance + 1) {
      runs.back().begin = *distance;
    } else {
      runs.push_back({*distance, *distance + 1});
    }
  }
  return runs;
}

// Key phases of a tile whose queries all have the coordinate `first` modulo stride; increasing.
std::vector<int32_t> key_phases(const LineIndex& index, int64_t first) {
  std::vector<int32_t> phases = index.vertical;
  for (const int32_t slash : index.slash) {
    const int64_t phase = (first % index.stride - slash + index.stride) % index.stride;
    phases.push_back(static_cast<int32_t>(phase));
  }
  std::sort(phases.begin(), phases.end());
  phases.erase(std::unique(phases.begin(), phases.end()), phases.end());
  return phases;
}

// What the queries of one tile ask for together.
TileReads reads_of(const Region& region, const LineIndex& index,
                   std::span<const TileReads::Range> slashes, std::span<const int32_t> tile) {
  const auto coordinate = [&](size_t i) {
    return int64_t{region.query_coordinates[static_cast<size_t>(tile[i])]};
  };
  const auto reach = [&](size_t i) {
    return int64_t{region.query_reach[static_cast<size_t>(tile[i])]};
  };
  TileReads reads;
  reads.end = reach(tile.size() - 1) + 1;
  if (index.sink > 0) {
    const int64_t place = std::min<int64_t>(index.sink, region.row_count()) - 1;
    reads.ranges.push_back({region.row_coordinates.front(),
                            int64_t{region.row_coordinates[static_cast<size_t>(place)]} + 1});
  }
  // Bands move with the queries, so they are drawn for every run of adjacent ones.
  const bool bands = index.local > 0 || index.segment > 0 || !slashes.empty();
  for (size_t begin = 0; bands && begin < tile.size();) {
    size_t end = begin + 1;
    while (end < tile.size() && coordinate(end) <= coordinate(end - 1) + 1 &&
           reach(end) <= reach(end - 1) + 1) {
      ++end;
    }
    const int64_t near = reach(begin);
    const int64_t far = reach(end - 1);
    if (index.local > 0) reads.ranges.push_back({near - index.local + 1, far + 1});
    if (index.segment > 0) reads.ranges.push_back({near / index.segment * index.segment, far + 1});
    const int64_t low = coordinate(begin);
    const int64_t high = coordinate(end - 1);
    for (const TileReads::Range& distances : slashes) {
      if (distances.begin > high) continue;
      reads.ranges.push_back({low - distances.end + 1, high - distances.begin + 1});
    }
    begin = end;
  }
  if (!index.vertical.empty() || !index.slash.empty()) {
    reads.stride = index.stride;
    reads.phases = key_phases(index, coordinate(0));
  }
  return reads;
}

}  // namespace

std::vector<std::vector<int32_t>> group_queries(const Region& region, const LineIndex& index,
                                                int64_t slash_queries) {
  std::vector<int32_t> full;
  std::vector<std::vector<int32_t>> classes(
      static_cast<size_t>(index.slash.empty() ? 1 : index.stride));
  for (size_t i = 0; i < region.queries.size(); ++i) {
    if (region.query_reach[i] < 0) continue;  // nothing before it in this region
    if (reads_everything(region, index, i)) {
      full.push_back(static_cast<int32_t>(i));
    } else {
      const int32_t phase = index.slash.empty() ? 0 : region.query_coordinates[i] % index.stride;
      classes[static_cast<size_t>(phase)].push_back(static_cast<int32_t>(i));
    }
  }
  std::vector<std::vector<int32_t>> tiles;
  cut(std::move(full), line_tile, tiles);
  const bool comb = !index.slash.empty() && std::max(index.local, index.segment) > 0;
  const int64_t size = comb ? comb_tile : index.slashes.empty() ? line_tile : slash_queries;
  for (auto& queries : classes) cut(std::move(queries), size, tiles);
  return tiles;
}

void add_line_tiles(PlanBuilder& builder, const Region& region, const LineIndex& index, int head,
                    int heads, int64_t slash_queries) {
  check_index(index);
  if (region.rows.empty()) return;
  const std::vector<TileReads::Range> slashes = slash_runs(index);
  const Columns columns = keep_columns(builder, region, index.columns), none;
  for (const std::vector<int32_t>& tile : group_queries(region, index, slash_queries)) {
    builder.begin_queries();
    for (const int32_t place : tile) builder.add_query(region.queries[static_cast<size_t>(place)]);
    builder.begin_segments();
    const int64_t last = region.query_reach[static_cast<size_t>(tile.back())];
    TileReads reads;
    const bool everything = reads_everything(region, index, static_cast<size_t>(tile.front()));
    if (everything) {
      reads.ranges.push_back({region.row_coordinates.front(), last + 1});
      reads.end = last + 1;
    } else {
      reads = reads_of(region, index, slashes, tile);
    }
    add_reads(builder, region, reads, everything ? none : columns);
    builder.add_tile(head, heads, region.pass);
  }
}

}  // namespace kinora
