// Pictures of attention as numbers: where a head's attention lies and which of it a plan computes,
// pooled to a small square. Used by `kinora inspect attention`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "attention/plan/plan.h"

namespace kinora {

// [side, side]: query bucket, key bucket.
struct PooledMap {
  int side = 0;
  std::vector<float> values;

  float at(int query, int key) const {
    return values[static_cast<size_t>(query) * static_cast<size_t>(side) +
                  static_cast<size_t>(key)];
  }
};

// The maps of one head of a prompt, added up group by group. The bucket of a query or row is that
// of its token: ordinal · side / tokens. Queries are [count, 1, d], rows [rows, 1, d].
class HeadMaps {
 public:
  // `side` is at most tokens / 32.
  HeadMaps(int64_t tokens, int side);

  // What the queries of a group attend to. 32 rows count together, where their middle one is.
  void add_attention(const Context& context, const QueryView& queries, const RowSet& rows,
                     float scale);
  // What a plan computes of it for this head.
  void add_plan(const Plan& plan, const QueryView& queries, const RowSet& rows, int head);

  // Share of the attention of a bucket's queries that lies on a bucket's keys; every row that sees
  // anything sums to 1.
  PooledMap attention() const;
  // Share of a cell's visible pairs that the plans compute; 0 where none is visible.
  PooledMap coverage() const;

 private:
  int bucket(int32_t ordinal) const {
    return static_cast<int>(std::min<int64_t>(int64_t{ordinal} * side_ / tokens_, side_ - 1));
  }
  size_t cell(int query, int key) const {
    return static_cast<size_t>(query) * static_cast<size_t>(side_) + static_cast<size_t>(key);
  }
  PooledMap empty() const;

  int64_t tokens_;
  int side_;
  std::vector<float> mass_;       // of attention
  std::vector<int64_t> queries_;  // of a bucket
  std::vector<double> computed_;  // pairs of a cell
  std::vector<double> visible_;   // likewise
};

}  // namespace kinora
