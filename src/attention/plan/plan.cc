#include "attention/plan/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "base/error.h"

namespace kinora {
namespace {

constexpr int32_t max_passes = 8;  // bits of the map of what was seen

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::bad_input, "attention plan: " + what);
}

void check_tile(const Plan& plan, size_t index, int32_t group) {
  const Tile& tile = plan.tiles[index];
  if (tile.head < 0 || tile.heads < 1 || tile.head > plan.heads - tile.heads) {
    refuse(fmt::format("tile {} has heads [{}, {}) of {}", index, tile.head,
                       int64_t{tile.head} + tile.heads, plan.heads));
  }
  if (tile.head / group != (tile.head + tile.heads - 1) / group) {
    refuse(fmt::format("tile {} has heads [{}, {}) of different kv heads", index, tile.head,
                       tile.head + tile.heads));
  }
  if (tile.pass < 0 || tile.pass >= max_passes) {
    refuse(fmt::format("tile {} is in pass {} of at most {}", index, tile.pass, max_passes));
  }
  const auto query_rows = static_cast<int64_t>(plan.query_rows.size());
  if (tile.query_begin < 0 || tile.query_begin > tile.query_end || tile.query_end > query_rows) {
    refuse(fmt::format("tile {} has query list [{}, {}) of {}", index, tile.query_begin,
                       tile.query_end, query_rows));
  }
  const auto segments = static_cast<int64_t>(plan.segments.size());
  if (tile.segment_begin < 0 || tile.segment_begin > tile.segment_end ||
      tile.segment_end > segments) {
    refuse(fmt::format("tile {} has segments [{}, {}) of {}", index, tile.segment_begin,
                       tile.segment_end, segments));
  }
}

void check_segment(const Plan& plan, size_t index) {
  const Segment& segment = plan.segments[index];
  if (segment.begin < 0 || segment.count < 0 || segment.stride < 0) {
    refuse(fmt::format("segment {} is negative", index));
  }
  if (segment.count == 0) return;
  if (segment.gathered()) {
    const auto size = static_cast<int64_t>(plan.gathered.size());
    if (segment.begin > size - segment.count || segment.count > size) {
      refuse(fmt::format("segment {} has gathered rows [{}, {} + {}) of {}", index, segment.begin,
                         segment.begin, segment.count, size));
    }
    return;
  }
  // last = begin + (count - 1) · stride < rows, without overflow
  if (segment.begin >= plan.row_count ||
      segment.count - 1 > (plan.row_count - 1 - segment.begin) / segment.stride) {
    refuse(fmt::format("segment {} (begin {}, count {}, stride {}) points outside the {} rows",
                       index, segment.begin, segment.count, segment.stride, plan.row_count));
  }
}

std::span<const int32_t> tile_queries(const Plan& plan, const Tile& tile) {
  return {plan.query_rows.data() + tile.query_begin, static_cast<size_t>(tile.queries())};
}

// No query of a head of this kv head may be in two tiles of a pass.
void check_coverage(const Plan& plan, int32_t kv_head) {
  const int32_t group = plan.heads / plan.kv_heads;
  std::vector<uint8_t> seen(static_cast<size_t>(plan.query_count * group));
  for (const Tile& tile : plan.tiles) {
    if (tile.head / group != kv_head) continue;
    const auto bit = static_cast<uint8_t>(1u << tile.pass);
    for (const int32_t query : tile_queries(plan, tile)) {
      for (int32_t head = tile.head; head < tile.head + tile.heads; ++head) {
        uint8_t& passes = seen[static_cast<size_t>(int64_t{query} * group + head % group)];
        if (passes & bit) {
          refuse(fmt::format("query row {} of head {} is in two tiles of pass {}", query, head,
                             tile.pass));
        }
        passes |= bit;
      }
    }
  }
}

// Calls visit(row) for the rows of a segment, in order.
template <typename Visit>
void for_rows(const Plan& plan, const Segment& segment, Visit&& visit) {
  for (int64_t i = 0; i < segment.count; ++i) {
    visit(segment.gathered() ? int64_t{plan.gathered[static_cast<size_t>(segment.begin + i)]}
                             : segment.begin + i * segment.stride);
  }
}

std::span<const Segment> tile_segments(const Plan& plan, const Tile& tile) {
  return {plan.segments.data() + tile.segment_begin,
          static_cast<size_t>(tile.segment_end - tile.segment_begin)};
}

// work(begin, end) over [0, count), on all threads where there are any.
template <typename Work>
void share(const ThreadPool* threads, size_t count, int64_t grain, const Work& work) {
  if (threads == nullptr) {
    work(size_t{0}, count);
    return;
  }
  threads->parallel_for(static_cast<int64_t>(count), grain, [&](int64_t begin, int64_t end) {
    work(static_cast<size_t>(begin), static_cast<size_t>(end));
  });
}

// What the tiles [begin, end) compute.
int64_t pairs_of(const Plan& plan, const QueryView& queries, const RowSet& rows, size_t begin,
                 size_t end) {
  int64_t total = 0;
  std::vector<int32_t> ordinals;
  for (size_t i = begin; i < end; ++i) {
    const Tile& tile = plan.tiles[i];
    ordinals.clear();
    int64_t pairs = 0;
    for (const Segment& segment : tile_segments(plan, tile)) {
      if (!segment.masked) {
        pairs += segment.count * tile.queries();
        continue;
      }
      if (ordinals.empty()) {
        for (const int32_t query : tile_queries(plan, tile)) {
          ordinals.push_back(queries.ordinals[static_cast<size_t>(query)]);
        }
        std::sort(ordinals.begin(), ordinals.end());
      }
      for_rows(plan, segment, [&](int64_t row) {
        const int32_t ordinal = rows.ordinals[static_cast<size_t>(row)];
        pairs += ordinals.end() - std::lower_bound(ordinals.begin(), ordinals.end(), ordinal);
      });
    }
    total += pairs * tile.heads;
  }
  return total;
}

}  // namespace

void validate(const Plan& plan, const QueryView& queries, const RowSet& rows,
              const ThreadPool* threads) {
  if (plan.query_count != queries.count() || plan.row_count != rows.count()) {
    refuse(fmt::format("made for {} queries and {} rows, given {} and {}", plan.query_count,
                       plan.row_count, queries.count(), rows.count()));
  }
  if (plan.heads != queries.queries.size(1) || plan.kv_heads != rows.keys.size(1)) {
    refuse(fmt::format("made for {} heads on {} kv heads, given {} on {}", plan.heads,
                       plan.kv_heads, queries.queries.size(1), rows.keys.size(1)));
  }
  if (plan.kv_heads < 1 || plan.heads % plan.kv_heads != 0) {
    refuse(fmt::format("{} heads cannot share {} kv heads", plan.heads, plan.kv_heads));
  }
  share(threads, plan.query_rows.size(), 1 << 14, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const int32_t query = plan.query_rows[i];
      if (query < 0 || query >= plan.query_count) {
        refuse(fmt::format("query row {} of {}", query, plan.query_count));
      }
    }
  });
  share(threads, plan.segments.size(), 1 << 12, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) check_segment(plan, i);
  });
  share(threads, plan.gathered.size(), 1 << 14, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const int32_t row = plan.gathered[i];
      if (row < 0 || row >= plan.row_count) {
        refuse(fmt::format("gathered row {} of {}", row, plan.row_count));
      }
    }
  });
  std::atomic<bool> masked = false;
  share(threads, plan.segments.size(), 1 << 12, [&](size_t begin, size_t end) {
    const auto first = plan.segments.begin() + static_cast<int64_t>(begin);
    const auto last = plan.segments.begin() + static_cast<int64_t>(end);
    if (std::any_of(first, last, [](const Segment& segment) { return segment.masked; })) {
      masked = true;
    }
  });
  const int32_t group = plan.heads / plan.kv_heads;
  for (size_t i = 0; i < plan.tiles.size(); ++i) check_tile(plan, i, group);
  // Tiles of different kv heads have nothing in common.
  share(threads, static_cast<size_t>(plan.kv_heads), 1, [&](size_t begin, size_t end) {
    for (size_t kv_head = begin; kv_head < end; ++kv_head) {
      check_coverage(plan, static_cast<int32_t>(kv_head));
    }
  });
  if (masked && (queries.ordinals.size() != static_cast<size_t>(plan.query_count) ||
                 rows.ordinals.size() != static_cast<size_t>(plan.row_count))) {
    refuse("masked segments need the ordinals of every query and row");
  }
}

int64_t attended_pairs(const Plan& plan, const QueryView& queries, const RowSet& rows,
                       const ThreadPool* threads) {
  std::atomic<int64_t> total = 0;
  share(threads, plan.tiles.size(), 16,
        [&](size_t begin, size_t end) { total += pairs_of(plan, queries, rows, begin, end); });
  return total;
}

int64_t dense_pairs(int64_t heads, const QueryView& queries, const RowSet& rows) {
  if (queries.ordinals.empty() || rows.ordinals.empty()) return 0;
  const auto without_gaps = [](std::span<const int32_t> ordinals) {
    return int64_t{ordinals.back()} - ordinals.front() + 1 == std::ssize(ordinals);
  };
  if (without_gaps(queries.ordinals) && without_gaps(rows.ordinals) &&
      queries.ordinals.front() >= rows.ordinals.front() &&
      queries.ordinals.back() <= rows.ordinals.back()) {
    // An arithmetic series; a million queries in every layer are not looked up one by one.
    const int64_t first = int64_t{queries.ordinals.front()} - rows.ordinals.front() + 1;
    return heads * (2 * first + std::ssize(queries.ordinals) - 1) * std::ssize(queries.ordinals) /
           2;
  }
  int64_t pairs = 0;
  for (const int32_t ordinal : queries.ordinals) pairs += visible_rows(rows.ordinals, ordinal);
  return pairs * heads;
}

std::vector<uint8_t> expand(const Plan& plan, const QueryView& queries, const RowSet& rows,
                            int head) {
  std::vector<uint8_t> mask(static_cast<size_t>(plan.query_count * plan.row_count));
  for (const Tile& tile : plan.tiles) {
    if (head < tile.head || head >= tile.head + tile.heads) continue;
    for (const Segment& segment : tile_segments(plan, tile)) {
      for (const int32_t query : tile_queries(plan, tile)) {
        for_rows(plan, segment, [&](int64_t row) {
          const bool reads = !segment.masked || rows.ordinals[static_cast<size_t>(row)] <=
                                                    queries.ordinals[static_cast<size_t>(query)];
          uint8_t& cell = mask[static_cast<size_t>(query * plan.row_count + row)];
          if (reads && cell < std::numeric_limits<uint8_t>::max()) ++cell;
        });
      }
    }
  }
  return mask;
}

int64_t visible_rows(std::span<const int32_t> row_ordinals, int32_t query_ordinal) {
  return std::upper_bound(row_ordinals.begin(), row_ordinals.end(), query_ordinal) -
         row_ordinals.begin();
}

void append(Plan& plan, const Plan& more) {
  const auto queries = static_cast<int64_t>(plan.query_rows.size());
  const auto segments = static_cast<int64_t>(plan.segments.size());
  const auto gathered = static_cast<int64_t>(plan.gathered.size());
  plan.query_rows.insert(plan.query_rows.end(), more.query_rows.begin(), more.query_rows.end());
  plan.gathered.insert(plan.gathered.end(), more.gathered.begin(), more.gathered.end());
  for (Segment segment : more.segments) {
    if (segment.gathered()) segment.begin += gathered;
    plan.segments.push_back(segment);
  }
  for (Tile tile : more.tiles) {
    tile.query_begin += queries;
    tile.query_end += queries;
    tile.segment_begin += segments;
    tile.segment_end += segments;
    plan.tiles.push_back(tile);
  }
}

Plan join(std::vector<Plan> plans, const ThreadPool* threads) {
  if (plans.empty()) return {};
  if (plans.size() == 1) return std::move(plans.front());
  struct Offsets {
    size_t queries = 0, tiles = 0, segments = 0, gathered = 0;
  };
  std::vector<Offsets> offsets;
  Offsets at;
  for (const Plan& plan : plans) {
    offsets.push_back(at);
    at.queries += plan.query_rows.size();
    at.tiles += plan.tiles.size();
    at.segments += plan.segments.size();
    at.gathered += plan.gathered.size();
  }
  Plan joined;
  joined.heads = plans.front().heads;
  joined.kv_heads = plans.front().kv_heads;
  joined.query_count = plans.front().query_count;
  joined.row_count = plans.front().row_count;
  joined.query_rows.resize(at.queries);
  joined.tiles.resize(at.tiles);
  joined.segments.resize(at.segments);
  joined.gathered.resize(at.gathered);
  share(threads, plans.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const Plan& plan = plans[i];
      const Offsets& to = offsets[i];
      std::copy(plan.query_rows.begin(), plan.query_rows.end(),
                joined.query_rows.begin() + static_cast<int64_t>(to.queries));
      std::copy(plan.gathered.begin(), plan.gathered.end(),
                joined.gathered.begin() + static_cast<int64_t>(to.gathered));
      for (size_t s = 0; s < plan.segments.size(); ++s) {
        Segment segment = plan.segments[s];
        if (segment.gathered()) segment.begin += static_cast<int64_t>(to.gathered);
        joined.segments[to.segments + s] = segment;
      }
      for (size_t t = 0; t < plan.tiles.size(); ++t) {
        Tile tile = plan.tiles[t];
        tile.query_begin += static_cast<int64_t>(to.queries);
        tile.query_end += static_cast<int64_t>(to.queries);
        tile.segment_begin += static_cast<int64_t>(to.segments);
        tile.segment_end += static_cast<int64_t>(to.segments);
        joined.tiles[to.tiles + t] = tile;
      }
    }
  });
  return joined;
}

QueryView slice(const QueryView& queries, int64_t begin, int64_t count) {
  const auto first = static_cast<size_t>(begin), size = static_cast<size_t>(count);
  return {queries.queries.rows(begin, count),
          queries.ordinals.subspan(first, size),
          queries.modalities.subspan(first, size),
          {},
          queries.cancel};
}

PlanBuilder::PlanBuilder(const QueryView& queries, const RowSet& rows)
    : queries_(queries), rows_(rows) {
  plan_.heads = static_cast<int32_t>(queries.queries.size(1));
  plan_.kv_heads = static_cast<int32_t>(rows.keys.size(1));
  plan_.query_count = queries.count();
  plan_.row_count = rows.count();
}

void PlanBuilder::begin_queries() { query_begin_ = static_cast<int64_t>(plan_.query_rows.size()); }

void PlanBuilder::add_query_range(int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) plan_.query_rows.push_back(static_cast<int32_t>(i));
}

void PlanBuilder::begin_segments() {
  segment_begin_ = static_cast<int64_t>(plan_.segments.size());
  int32_t first = std::numeric_limits<int32_t>::max();
  int32_t last = std::numeric_limits<int32_t>::min();
  for (size_t i = static_cast<size_t>(query_begin_); i < plan_.query_rows.size(); ++i) {
    const int32_t ordinal = queries_.ordinals[static_cast<size_t>(plan_.query_rows[i])];
    first = std::min(first, ordinal);
    last = std::max(last, ordinal);
  }
  visible_to_all_ = visible_rows(rows_.ordinals, first);
  visible_to_any_ = visible_rows(rows_.ordinals, last);
}

void PlanBuilder::add_segment(int64_t begin, int64_t count, int32_t stride, bool masked) {
  if (count > 0) plan_.segments.push_back({begin, count, stride, masked});
}

void PlanBuilder::add_rows(int64_t begin, int64_t count, int32_t stride) {
  if (stride < 1) refuse(fmt::format("a stride of {}; it must be at least 1", stride));
  // How many of the rows begin, begin + stride, … lie before `end`.
  const auto before = [&](int64_t end) {
    return end <= begin ? 0 : std::min(count, (end - begin + stride - 1) / stride);
  };
  const int64_t full = before(visible_to_all_);
  const int64_t any = before(visible_to_any_);
  add_segment(begin, full, stride, false);
  add_segment(begin + full * stride, any - full, stride, true);
}

void PlanBuilder::add_gathered(std::span<const int32_t> rows) {
  const auto seen = std::lower_bound(rows.begin(), rows.end(), visible_to_any_) - rows.begin();
  add_kept(keep_rows(rows.first(static_cast<size_t>(seen))), seen);
}

int64_t PlanBuilder::keep_rows(std::span<const int32_t> rows) {
  const auto begin = static_cast<int64_t>(plan_.gathered.size());
  plan_.gathered.insert(plan_.gathered.end(), rows.begin(), rows.end());
  return begin;
}

void PlanBuilder::add_kept(int64_t begin, int64_t count) {
  const auto rows =
      std::span(plan_.gathered).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  const auto before = [&](int64_t end) {
    return std::lower_bound(rows.begin(), rows.end(), end) - rows.begin();
  };
  const int64_t full = before(visible_to_all_);
  const int64_t any = before(visible_to_any_);
  add_segment(begin, full, 0, false);
  add_segment(begin + full, any - full, 0, true);
}

void PlanBuilder::add_tile(int head, int heads, int pass) {
  plan_.tiles.push_back({head, heads, pass, query_begin_,
                         static_cast<int64_t>(plan_.query_rows.size()), segment_begin_,
                         static_cast<int64_t>(plan_.segments.size())});
}

}  // namespace kinora
