#include "attention/search/attention_map.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <numbers>

#include "attention/policies/dense.h"
#include "attention/runner.h"
#include "attention/search/metrics.h"

namespace kinora {
namespace {

constexpr int64_t unit = 32;  // keys of one observation

// Passes on which share of a query's attention a block of keys has.
class ShareObserver final : public BlockObserver {
 public:
  using Share = std::function<void(int64_t block, int32_t query, float share)>;
  ShareObserver(std::vector<float> log_sums, Share share)
      : log_sums_(std::move(log_sums)), share_(std::move(share)) {}

  int64_t block_size() const override { return unit; }
  void observe(int64_t block, int64_t count, const int32_t* query, const int32_t*,
               const float* score) override {
    for (int64_t i = 0; i < count; ++i) {
      if (std::isinf(score[i])) continue;
      const float total = log_sums_[static_cast<size_t>(query[i])] * std::numbers::log2e_v<float>;
      share_(block, query[i], std::exp2(score[i] - total));
    }
  }

 private:
  std::vector<float> log_sums_;
  Share share_;
};

}  // namespace

HeadMaps::HeadMaps(int64_t tokens, int side) : tokens_(tokens), side_(side) {
  const size_t cells = cell(side, 0);
  mass_.resize(cells);
  computed_.resize(cells);
  visible_.resize(cells);
  queries_.resize(static_cast<size_t>(side));
}

void HeadMaps::add_attention(const Context& context, const QueryView& queries, const RowSet& rows,
                             float scale) {
  const Plan plan = dense_plan(queries, rows);
  const auto add = [&](int64_t block, int32_t query, float share) {
    const int64_t middle = std::min(block * unit + unit / 2, rows.count() - 1);
    const int key = bucket(rows.ordinals[static_cast<size_t>(middle)]);
    const int row = bucket(queries.ordinals[static_cast<size_t>(query)]);
    // Queries of one bucket may be in the hands of several threads.
    std::atomic_ref<float>(mass_[cell(row, key)]).fetch_add(share);
  };
  ShareObserver observer(log_sums(context, plan, queries, rows, scale), add);
  Tensor out(DType::f32, queries.queries.shape());
  run_plan(context, plan, queries, rows, scale, out, {.observer = &observer});
  for (const int32_t ordinal : queries.ordinals) ++queries_[static_cast<size_t>(bucket(ordinal))];
}

void HeadMaps::add_plan(const Plan& plan, const QueryView& queries, const RowSet& rows, int head) {
  const auto row_of = [&](int32_t query) {
    return bucket(queries.ordinals[static_cast<size_t>(query)]);
  };
  std::vector<int64_t> keys(static_cast<size_t>(side_));
  for (const Tile& tile : plan.tiles) {
    if (head < tile.head || head >= tile.head + tile.heads) continue;
    std::fill(keys.begin(), keys.end(), 0);
    for (int64_t s = tile.segment_begin; s < tile.segment_end; ++s) {
      const Segment& segment = plan.segments[static_cast<size_t>(s)];
      for (int64_t i = 0; i < segment.count; ++i) {
        const int64_t row = segment.gathered()
                                ? plan.gathered[static_cast<size_t>(segment.begin + i)]
                                : segment.begin + i * segment.stride;
        const int32_t ordinal = rows.ordinals[static_cast<size_t>(row)];
        if (!segment.masked) {
          ++keys[static_cast<size_t>(bucket(ordinal))];
          continue;
        }
        for (int64_t q = tile.query_begin; q < tile.query_end; ++q) {
          const int32_t query = plan.query_rows[static_cast<size_t>(q)];
          if (ordinal <= queries.ordinals[static_cast<size_t>(query)]) {
            computed_[cell(row_of(query), bucket(ordinal))] += 1;
          }
        }
      }
    }
    for (int64_t q = tile.query_begin; q < tile.query_end; ++q) {
      const int row = row_of(plan.query_rows[static_cast<size_t>(q)]);
      for (int key = 0; key < side_; ++key) {
        computed_[cell(row, key)] += static_cast<double>(keys[static_cast<size_t>(key)]);
      }
    }
  }
  std::vector<int64_t> firsts(static_cast<size_t>(side_) + 1);  // first row of every bucket
  for (int b = 0; b <= side_; ++b) {
    const int64_t ordinal = (b * tokens_ + side_ - 1) / side_;
    firsts[static_cast<size_t>(b)] =
        std::lower_bound(rows.ordinals.begin(), rows.ordinals.end(), ordinal) -
        rows.ordinals.begin();
  }
  for (const int32_t ordinal : queries.ordinals) {
    const int64_t seen = visible_rows(rows.ordinals, ordinal);
    for (int key = 0; key < side_; ++key) {
      const int64_t begin = firsts[static_cast<size_t>(key)];
      const int64_t end = std::min(firsts[static_cast<size_t>(key) + 1], seen);
      if (end > begin) visible_[cell(bucket(ordinal), key)] += static_cast<double>(end - begin);
    }
  }
}

PooledMap HeadMaps::empty() const { return {side_, std::vector<float>(mass_.size())}; }

PooledMap HeadMaps::attention() const {
  PooledMap map = empty();
  for (size_t i = 0; i < mass_.size(); ++i) {
    const int64_t queries = queries_[i / static_cast<size_t>(side_)];
    if (queries > 0) map.values[i] = mass_[i] / static_cast<float>(queries);
  }
  return map;
}

PooledMap HeadMaps::coverage() const {
  PooledMap map = empty();
  for (size_t i = 0; i < computed_.size(); ++i) {
    if (visible_[i] > 0) map.values[i] = static_cast<float>(computed_[i] / visible_[i]);
  }
  return map;
}

}  // namespace kinora
