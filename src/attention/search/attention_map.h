// Pictures of attention as numbers: where a head's attention lies and which of it a plan computes,
// pooled to a small square. Used by `kinora inspect attention`.
#pragma once

#include <vector>

#include "attention/attention.h"
#include "attention/plan/plan.h"

namespace kinora {

// [side, side]: query bucket, key bucket. Bucket of query i: i · side / count; of row r likewise.
struct PooledMap {
  int side = 0;
  std::vector<float> values;

  float at(int query, int key) const {
    return values[static_cast<size_t>(query) * static_cast<size_t>(side) +
                  static_cast<size_t>(key)];
  }
};

// Share of the attention of a bucket's queries that lies on a bucket's keys; every row that sees
// anything sums to 1. One head: queries [count, 1, d], rows [rows, 1, d]. `side` is at most
// rows / 32.
PooledMap attention_map(const Context& context, const QueryView& queries, const RowsView& rows,
                        float scale, int side);

// Share of a cell's visible pairs that the plan computes for this head; 0 where none is visible.
PooledMap coverage_map(const Plan& plan, const QueryView& queries, const RowsView& rows, int head,
                       int side);

}  // namespace kinora
