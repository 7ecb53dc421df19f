// A plan says which rows of memory every query reads: for each tile (a few query heads that share a
// kv head, and any query rows) a list of key segments. Builders (line_plan.h, block_plan.h) make
// plans, a runner (runner.h) executes them; a plan is flat arrays with 64-bit offsets, the same on
// every device.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "attention/attention.h"

namespace kinora {

// Key rows that every query of a tile reads. Affine: begin, begin + stride, …, `count` rows.
// Gathered: rows gathered[begin] … gathered[begin + count).
struct Segment {
  int64_t begin = 0;
  int64_t count = 0;
  int32_t stride = 1;   // 0 marks a gathered segment
  bool masked = false;  // compare ordinals: a query skips rows later than itself

  bool gathered() const { return stride == 0; }
  bool operator==(const Segment&) const = default;
};

// Query rows query_rows[query_begin … query_end) of heads [head, head + heads), which share one kv
// head, and segments [segment_begin, segment_end). Tiles may share lists of either kind. A query
// may read disjoint sets of keys through tiles of different passes; their results are merged.
struct Tile {
  int32_t head = 0;
  int32_t heads = 1;
  int32_t pass = 0;
  int64_t query_begin = 0;
  int64_t query_end = 0;
  int64_t segment_begin = 0;
  int64_t segment_end = 0;

  int64_t queries() const { return query_end - query_begin; }
};

struct Plan {
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int64_t query_count = 0;          // of the QueryView it was made for
  int64_t row_count = 0;            // of the RowSet it was made for
  std::vector<int32_t> query_rows;  // indexes into the QueryView, in tile order (the permutation)
  std::vector<Tile> tiles;
  std::vector<Segment> segments;
  std::vector<int32_t> gathered;  // indexes into the RowSet
};

// Throws a bad_input error that names the first fault: a count that does not match, a tile that
// crosses kv heads, a list or row outside its array, a query of a head twice in one pass. Threads
// share the work where they are given, here and below.
void validate(const Plan& plan, const QueryView& queries, const RowSet& rows,
              const ThreadPool* threads = nullptr);

// Number of (query, head, row) triples that the plan computes, causality taken into account.
int64_t attended_pairs(const Plan& plan, const QueryView& queries, const RowSet& rows,
                       const ThreadPool* threads = nullptr);
// The same for dense causal attention.
int64_t dense_pairs(int64_t heads, const QueryView& queries, const RowSet& rows);

// mask[query * rows + row] = how often the query of this head reads the row; for tests and
// pictures.
std::vector<uint8_t> expand(const Plan& plan, const QueryView& queries, const RowSet& rows,
                            int head);

// Adds the tiles of a plan for the same queries and rows.
void append(Plan& plan, const Plan& more);
// One plan of the tiles of all, in order.
Plan join(std::vector<Plan> plans, const ThreadPool* threads = nullptr);

// Number of rows that a query of this ordinal may read: rows are sorted by ordinal, so these are
// the first ones.
int64_t visible_rows(std::span<const int32_t> row_ordinals, int32_t query_ordinal);

// Queries [begin, begin + count) of a group.
QueryView slice(const QueryView& queries, int64_t begin, int64_t count);

// Appends tiles to a plan piece by piece.
class PlanBuilder {
 public:
  PlanBuilder(const QueryView& queries, const RowSet& rows);

  // Starts a list of query rows, to be shared by any tiles added until the next call.
  void begin_queries();
  void add_query(int32_t query) { plan_.query_rows.push_back(query); }
  void add_query_range(int64_t begin, int64_t end);

  // Starts a list of segments, to be shared likewise.
  void begin_segments();
  // Rows begin, begin + stride, … (count of them). Where part of them is later than the earliest
  // query of the list under way, that part is tagged masked; rows later than its last query are
  // left out.
  void add_rows(int64_t begin, int64_t count, int32_t stride = 1);
  // Increasing rows, treated the same way.
  void add_gathered(std::span<const int32_t> rows);
  // Keeps increasing rows for any lists to come; returns their place.
  int64_t keep_rows(std::span<const int32_t> rows);
  // Kept rows [begin, begin + count), by place, treated the same way.
  void add_kept(int64_t begin, int64_t count);

  // A tile over the current lists. Without rows it is legal and reads nothing.
  void add_tile(int head, int heads = 1, int pass = 0);

  Plan take() { return std::move(plan_); }

 private:
  void add_segment(int64_t begin, int64_t count, int32_t stride, bool masked);

  QueryView queries_;
  RowSet rows_;
  Plan plan_;
  int64_t query_begin_ = 0;
  int64_t segment_begin_ = 0;
  int64_t visible_to_all_ = 0;  // rows that the earliest query of the list may read
  int64_t visible_to_any_ = 0;  // rows that the latest query of the list may read
};

}  // namespace kinora
