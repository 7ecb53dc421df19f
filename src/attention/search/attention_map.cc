#include "attention/search/attention_map.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>

#include "attention/policies/dense.h"
#include "attention/runner.h"
#include "attention/search/metrics.h"

namespace kinora {
namespace {

constexpr int64_t unit = 32;  // keys of one observation

int bucket(int64_t index, int64_t count, int side) {
  return static_cast<int>(index * side / count);
}

class MapObserver final : public BlockObserver {
 public:
  MapObserver(int64_t queries, int64_t rows, std::vector<float> log_sums, PooledMap& map)
      : queries_(queries),
        rows_(rows),
        log_sums_(std::move(log_sums)),
        map_(map),
        members_(static_cast<size_t>(map.side)) {
    for (int64_t i = 0; i < queries; ++i)
      ++members_[static_cast<size_t>(bucket(i, queries, map.side))];
  }

  int64_t block_size() const override { return unit; }
  void observe(int64_t block, int64_t count, const int32_t* query, const int32_t*,
               const float* score) override {
    const int key = bucket(std::min(block * unit + unit / 2, rows_ - 1), rows_, map_.side);
    for (int64_t i = 0; i < count; ++i) {
      if (std::isinf(score[i])) continue;
      const float total = log_sums_[static_cast<size_t>(query[i])] * std::numbers::log2e_v<float>;
      const int row = bucket(query[i], queries_, map_.side);
      float& cell = map_.values[static_cast<size_t>(row) * static_cast<size_t>(map_.side) +
                                static_cast<size_t>(key)];
      // Queries of one bucket may be in the hands of several threads.
      std::atomic_ref<float>(cell).fetch_add(
          std::exp2(score[i] - total) / static_cast<float>(members_[static_cast<size_t>(row)]));
    }
  }

 private:
  int64_t queries_, rows_;
  std::vector<float> log_sums_;
  PooledMap& map_;
  std::vector<int64_t> members_;  // queries of a bucket
};

PooledMap empty_map(int side) {
  return {side, std::vector<float>(static_cast<size_t>(side) * static_cast<size_t>(side))};
}

}  // namespace

PooledMap attention_map(const Context& context, const QueryView& queries, const RowsView& rows,
                        float scale, int side) {
  PooledMap map = empty_map(side);
  const Plan plan = dense_plan(queries, rows);
  MapObserver observer(queries.count(), rows.count(), log_sums(context, plan, queries, rows, scale),
                       map);
  Tensor out(DType::f32, queries.queries.shape());
  run_plan(context, plan, queries, rows, scale, out, {.observer = &observer});
  return map;
}

PooledMap coverage_map(const Plan& plan, const QueryView& queries, const RowsView& rows, int head,
                       int side) {
  PooledMap computed = empty_map(side);
  const auto cell = [side](PooledMap& map, int64_t query, int64_t key) -> float& {
    return map
        .values[static_cast<size_t>(query) * static_cast<size_t>(side) + static_cast<size_t>(key)];
  };
  std::vector<int64_t> keys(static_cast<size_t>(side));
  for (const Tile& tile : plan.tiles) {
    if (head < tile.head || head >= tile.head + tile.heads) continue;
    std::fill(keys.begin(), keys.end(), 0);
    for (int64_t s = tile.segment_begin; s < tile.segment_end; ++s) {
      const Segment& segment = plan.segments[static_cast<size_t>(s)];
      for (int64_t i = 0; i < segment.count; ++i) {
        const int64_t row = segment.gathered()
                                ? plan.gathered[static_cast<size_t>(segment.begin + i)]
                                : segment.begin + i * segment.stride;
        const int key = bucket(row, rows.count(), side);
        if (!segment.masked) {
          ++keys[static_cast<size_t>(key)];
          continue;
        }
        for (int64_t q = tile.query_begin; q < tile.query_end; ++q) {
          const int32_t query = plan.query_rows[static_cast<size_t>(q)];
          if (rows.ordinals[static_cast<size_t>(row)] <=
              queries.ordinals[static_cast<size_t>(query)]) {
            cell(computed, bucket(query, queries.count(), side), key) += 1;
          }
        }
      }
    }
    for (int64_t q = tile.query_begin; q < tile.query_end; ++q) {
      const int row = bucket(plan.query_rows[static_cast<size_t>(q)], queries.count(), side);
      for (int key = 0; key < side; ++key) {
        cell(computed, row, key) += static_cast<float>(keys[static_cast<size_t>(key)]);
      }
    }
  }
  PooledMap visible = empty_map(side);
  std::vector<int64_t> ends(static_cast<size_t>(side) + 1);  // first row of every bucket
  for (int b = 0; b <= side; ++b) {
    ends[static_cast<size_t>(b)] = (b * rows.count() + side - 1) / side;
  }
  for (int64_t q = 0; q < queries.count(); ++q) {
    const int64_t seen = visible_rows(rows.ordinals, queries.ordinals[static_cast<size_t>(q)]);
    for (int key = 0; key < side; ++key) {
      const int64_t begin = ends[static_cast<size_t>(key)];
      const int64_t end = std::min(ends[static_cast<size_t>(key) + 1], seen);
      if (end > begin) {
        cell(visible, bucket(q, queries.count(), side), key) += static_cast<float>(end - begin);
      }
    }
  }
  for (size_t i = 0; i < computed.values.size(); ++i) {
    computed.values[i] = visible.values[i] > 0 ? computed.values[i] / visible.values[i] : 0;
  }
  return computed;
}

}  // namespace kinora
