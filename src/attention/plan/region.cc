#include "attention/plan/region.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"

namespace kinora {
namespace {

constexpr std::array all_modalities = {Modality::text, Modality::image, Modality::video,
                                       Modality::audio};

std::vector<int32_t> all_of(int64_t count) {
  std::vector<int32_t> indexes(static_cast<size_t>(count));
  for (size_t i = 0; i < indexes.size(); ++i) indexes[i] = static_cast<int32_t>(i);
  return indexes;
}

std::vector<int32_t> of_modality(std::span<const Modality> modalities, Modality wanted) {
  std::vector<int32_t> indexes;
  for (size_t i = 0; i < modalities.size(); ++i) {
    if (modalities[i] == wanted) indexes.push_back(static_cast<int32_t>(i));
  }
  return indexes;
}

std::vector<int32_t> ordinals_of(const RowSet& rows, std::span<const int32_t> places) {
  std::vector<int32_t> ordinals;
  ordinals.reserve(places.size());
  for (const int32_t row : places) ordinals.push_back(rows.ordinals[static_cast<size_t>(row)]);
  return ordinals;
}

// Ordinals as coordinates.
void place_by_ordinal(Region& region, const QueryView& queries, const RowSet& rows) {
  region.row_coordinates = ordinals_of(rows, region.rows);
  for (const int32_t query : region.queries) {
    region.query_coordinates.push_back(queries.ordinals[static_cast<size_t>(query)]);
  }
  region.query_reach = region.query_coordinates;
}

// Places as coordinates: of keys among the region's rows, of queries among `own`, the rows of their
// own modality.
void place_by_modality(Region& region, const QueryView& queries, const RowSet& rows,
                       std::span<const int32_t> own) {
  region.row_coordinates = all_of(region.row_count());
  const std::vector<int32_t> keys = ordinals_of(rows, region.rows);
  const std::vector<int32_t> peers = ordinals_of(rows, own);
  const auto last_before = [](std::span<const int32_t> ordinals, int32_t ordinal) {
    return static_cast<int32_t>(visible_rows(ordinals, ordinal)) - 1;
  };
  int32_t shift = std::numeric_limits<int32_t>::min();
  for (const int32_t query : region.queries) {
    const int32_t ordinal = queries.ordinals[static_cast<size_t>(query)];
    region.query_coordinates.push_back(last_before(peers, ordinal));
    region.query_reach.push_back(last_before(keys, ordinal));
    if (region.query_reach.back() < 0) continue;
    shift = std::max(shift, region.query_reach.back() - region.query_coordinates.back());
  }
  if (shift == std::numeric_limits<int32_t>::min()) return;  // none of them sees anything
  for (int32_t& coordinate : region.query_coordinates) coordinate += shift;
}

void find_runs(Region& region) {
  const size_t count = region.rows.size();
  region.run_ends.resize(count);
  region.unbroken = true;
  for (size_t i = count; i > 0; --i) {
    const size_t at = i - 1;
    const bool joined = i < count && region.rows[i] == region.rows[at] + 1;
    region.run_ends[at] = joined ? region.run_ends[i] : static_cast<int32_t>(i);
    if (i < count && (!joined || region.row_coordinates[i] != region.row_coordinates[at] + 1)) {
      region.unbroken = false;
    }
  }
}

void add_places(PlanBuilder& builder, const Region& region, int64_t begin, int64_t end) {
  while (begin < end) {
    const int64_t stop = std::min<int64_t>(end, region.run_ends[static_cast<size_t>(begin)]);
    builder.add_rows(region.rows[static_cast<size_t>(begin)], stop - begin);
    begin = stop;
  }
}

void merge_ranges(std::vector<TileReads::Range>& ranges, int64_t begin, int64_t end) {
  for (TileReads::Range& range : ranges) {
    range.begin = std::max(range.begin, begin);
    range.end = std::min(range.end, end);
  }
  std::erase_if(ranges, [](const TileReads::Range& range) { return range.begin >= range.end; });
  const auto earlier = [](const TileReads::Range& a, const TileReads::Range& b) {
    return a.begin < b.begin;
  };
  if (!std::is_sorted(ranges.begin(), ranges.end(), earlier)) {
    std::sort(ranges.begin(), ranges.end(), earlier);
  }
  size_t kept = 0;
  for (const TileReads::Range& range : ranges) {
    if (kept > 0 && range.begin <= ranges[kept - 1].end) {
      ranges[kept - 1].end = std::max(ranges[kept - 1].end, range.end);
    } else {
      ranges[kept++] = range;
    }
  }
  ranges.resize(kept);
}

bool on_line(const TileReads& reads, int64_t coordinate) {
  if (reads.stride == 0) return false;
  const auto phase = static_cast<int32_t>(coordinate % reads.stride);
  return std::find(reads.phases.begin(), reads.phases.end(), phase) != reads.phases.end();
}

// Which phases lines have, as a map: looked up for every row, where there may be many phases.
std::vector<uint8_t> phase_map(const TileReads& reads) {
  std::vector<uint8_t> map(static_cast<size_t>(reads.stride));
  for (const int32_t phase : reads.phases) map[static_cast<size_t>(phase)] = 1;
  return map;
}

// Lines between two ranges, [begin, end) in coordinates.
void add_lines(PlanBuilder& builder, const Region& region, const TileReads& reads, int64_t begin,
               int64_t end) {
  if (reads.stride == 0 || begin >= end) return;
  if (region.unbroken) {
    for (const int32_t phase : reads.phases) {
      const int64_t ahead = (phase - begin % reads.stride + reads.stride) % reads.stride;
      const int64_t first = begin + ahead;
      if (first >= end) continue;
      builder.add_rows(region.rows[static_cast<size_t>(region.place_of(first))],
                       (end - first + reads.stride - 1) / reads.stride, reads.stride);
    }
    return;
  }
  std::vector<int32_t> gathered;
  const std::vector<uint8_t> lines = phase_map(reads);
  const int64_t last = region.place_of(end);
  int64_t i = region.place_of(begin);
  if (i == last) return;
  // Coordinates increase: their phase is counted on where they are adjacent.
  int32_t before = region.row_coordinates[static_cast<size_t>(i)];
  int32_t phase = before % reads.stride;
  for (; i < last; ++i) {
    const int32_t coordinate = region.row_coordinates[static_cast<size_t>(i)];
    phase += coordinate - before;
    before = coordinate;
    if (phase >= reads.stride)
      phase = phase < 2 * reads.stride ? phase - reads.stride : coordinate % reads.stride;
    if (lines[static_cast<size_t>(phase)] != 0) {
      gathered.push_back(region.rows[static_cast<size_t>(i)]);
    }
  }
  builder.add_gathered(gathered);
}

// Columns [first, last), by place, without those that are on a line.
void add_column_run(PlanBuilder& builder, const TileReads& reads, const Columns& columns,
                    int64_t first, int64_t last) {
  if (reads.stride != 0) {
    for (int64_t i = first; i < last; ++i) {
      if (!on_line(reads, columns.coordinates[static_cast<size_t>(i)])) continue;
      if (first < i) builder.add_kept(columns.kept + first, i - first);
      first = i + 1;
    }
  }
  if (first < last) builder.add_kept(columns.kept + first, last - first);
}

// Columns between the ranges.
void add_columns(PlanBuilder& builder, const TileReads& reads, const Columns& columns) {
  const auto& all = columns.coordinates;
  const auto place_of = [&](int64_t coordinate) {
    return std::lower_bound(all.begin(), all.end(), coordinate) - all.begin();
  };
  const int64_t end = place_of(reads.end);
  int64_t next = 0;
  for (const TileReads::Range& range : reads.ranges) {
    add_column_run(builder, reads, columns, next, std::min(end, place_of(range.begin)));
    next = place_of(range.end);
  }
  add_column_run(builder, reads, columns, next, end);
}

}  // namespace

std::string_view boundary_name(Boundary boundary) {
  switch (boundary) {
    case Boundary::none:
      return "none";
    case Boundary::key:
      return "key";
    case Boundary::query:
      return "query";
    case Boundary::both:
      return "both";
  }
  return "?";
}

Boundary parse_boundary(std::string_view name) {
  for (const Boundary boundary : {Boundary::none, Boundary::key, Boundary::query, Boundary::both}) {
    if (boundary_name(boundary) == name) return boundary;
  }
  throw Error(ErrorKind::bad_input, "no modality boundary is called \"" + std::string(name) +
                                        "\"; there are none, key, query and both");
}

int64_t Region::place_of(int64_t coordinate) const {
  if (row_coordinates.empty()) return 0;
  if (unbroken) return std::clamp<int64_t>(coordinate - row_coordinates[0], 0, row_count());
  return std::lower_bound(row_coordinates.begin(), row_coordinates.end(), coordinate) -
         row_coordinates.begin();
}

Columns keep_columns(PlanBuilder& builder, const Region& region,
                     std::span<const int32_t> coordinates) {
  Columns columns;
  std::vector<int32_t> rows;
  for (const int32_t coordinate : coordinates) {
    const auto at = static_cast<size_t>(region.place_of(coordinate));
    if (at >= region.rows.size() || region.row_coordinates[at] != coordinate) continue;
    columns.coordinates.push_back(coordinate);
    rows.push_back(region.rows[at]);
  }
  columns.kept = builder.keep_rows(rows);
  return columns;
}

std::vector<Region> cut_regions(Boundary boundary, const QueryView& queries, const RowSet& rows) {
  const bool by_key = boundary == Boundary::key || boundary == Boundary::both;
  const bool by_query = boundary == Boundary::query || boundary == Boundary::both;
  std::vector<Region> regions;
  int pass = 0;
  for (const Modality key : all_modalities) {
    if (!by_key && key != all_modalities[0]) break;
    std::vector<int32_t> keys = by_key ? of_modality(rows.modalities, key) : all_of(rows.count());
    if (keys.empty()) continue;
    for (const Modality query : all_modalities) {
      if (!by_query && query != all_modalities[0]) break;
      Region region;
      region.query_modality = query;
      region.key_modality = key;
      region.pass = pass;
      region.queries = by_query ? of_modality(queries.modalities, query) : all_of(queries.count());
      if (region.queries.empty()) continue;
      region.rows = keys;
      if (boundary == Boundary::both) {
        place_by_modality(region, queries, rows, of_modality(rows.modalities, query));
      } else {
        place_by_ordinal(region, queries, rows);
      }
      find_runs(region);
      regions.push_back(std::move(region));
    }
    ++pass;
  }
  return regions;
}

void add_reads(PlanBuilder& builder, const Region& region, TileReads& reads,
               const Columns& columns) {
  if (region.row_coordinates.empty()) return;
  const int64_t begin = region.row_coordinates.front();
  const int64_t end = std::min<int64_t>(reads.end, int64_t{region.row_coordinates.back()} + 1);
  merge_ranges(reads.ranges, begin, end);
  int64_t at = begin;
  for (const TileReads::Range& range : reads.ranges) {
    add_lines(builder, region, reads, at, range.begin);
    add_places(builder, region, region.place_of(range.begin), region.place_of(range.end));
    at = range.end;
  }
  add_lines(builder, region, reads, at, end);
  add_columns(builder, reads, columns);
}

}  // namespace kinora
