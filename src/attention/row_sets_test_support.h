// Rows of a random problem dealt out to several sets, on any device, and what attention over them
// may lose. Used by the tests of row sets and of memories.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "attention/cuda/device_test_support.h"

namespace kinora::testing {

// What f32 arithmetic may lose, or what bf16 weights and results lose where a GPU has bf16 rows.
inline double limit_of(const Problem& problem, Device device, const Expected& expected) {
  const double tolerance = f32_tolerance(expected);
  if (device.is_cpu() || problem.shape.dtype == DType::f32) return tolerance;
  return tolerance + 2 * relative_error(std::span<const double>(expected.rounded),
                                        std::span<const double>(expected.out));
}

// Which rows of a problem are in which set, the same on every device.
struct Dealt {
  struct Set {
    std::vector<int32_t> rows;    // of the problem, increasing
    std::vector<int32_t> places;  // where they are stored, for a set with a list
    int64_t stored = 0;
    std::vector<int32_t> serves;
    bool weighted = false;
    std::vector<int32_t> ordinals;
    std::vector<Modality> modalities;
  };
  std::vector<Set> sets;
  std::vector<int32_t> set_of;   // [rows of the problem]
  std::vector<int32_t> parents;  // of the queries

  bool reads(const Problem& problem, int64_t query, int64_t row) const {
    const auto& serves = sets[static_cast<size_t>(set_of[static_cast<size_t>(row)])].serves;
    if (!serves.empty() &&
        !std::binary_search(serves.begin(), serves.end(), static_cast<int32_t>(query))) {
      return false;
    }
    if (row < problem.shape.earlier) return true;
    if (parents.empty()) return causal(problem, query, row);
    for (int64_t node = query; node >= 0; node = parents[static_cast<size_t>(node)]) {
      if (problem.shape.earlier + node == row) return true;
    }
    return false;
  }
  Expected expected(const Problem& problem) const {
    return reference(problem,
                     [&](int64_t q, int64_t, int64_t row) { return reads(problem, q, row); });
  }
};

inline void shuffle(Random& random, std::vector<int32_t>& numbers) {
  for (size_t i = numbers.size(); i > 1; --i) {
    std::swap(numbers[i - 1], numbers[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  }
}

inline std::vector<int32_t> random_parents(Random& random, int64_t count) {
  std::vector<int32_t> parents;
  for (int64_t i = 0; i < count; ++i) {
    parents.push_back(static_cast<int32_t>(random.below(i + 1) - 1));
  }
  return parents;
}

inline constexpr int64_t set_sizes[] = {1, 63, 65, 127, 129, 700};

// One to four sets that hold at least `queries` rows.
inline std::vector<int64_t> random_sizes(Random& random, int64_t queries) {
  std::vector<int64_t> sizes;
  do {
    sizes.clear();
    const int64_t count = 1 + random.below(most_row_sets);
    for (int64_t i = 0; i < count; ++i) sizes.push_back(set_sizes[random.below(6)]);
  } while (std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) < queries);
  return sizes;
}

inline Problem random_problem(Random& random, int64_t queries, int64_t head_size, DType dtype,
                              std::span<const int64_t> sizes) {
  constexpr int64_t head_counts[][2] = {{1, 1}, {4, 2}, {6, 2}, {7, 1}};
  const auto& heads = head_counts[random.below(4)];
  const int64_t rows = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  Problem problem = make_problem(random, {.queries = queries,
                                          .earlier = rows - queries,
                                          .heads = heads[0],
                                          .kv_heads = heads[1],
                                          .head_size = head_size,
                                          .dtype = dtype,
                                          .gaps = 0.2});
  if (dtype != DType::f32) narrow_queries(problem);
  return problem;
}

// Deals the rows out to sets of these sizes, one after another or all mixed up.
inline Dealt deal(Random& random, const Problem& problem, std::span<const int64_t> sizes) {
  Dealt dealt;
  for (size_t i = 0; i < sizes.size(); ++i) {
    dealt.set_of.insert(dealt.set_of.end(), static_cast<size_t>(sizes[i]), static_cast<int32_t>(i));
  }
  if (random.below(2) == 0) shuffle(random, dealt.set_of);
  dealt.sets.resize(sizes.size());
  for (size_t row = 0; row < dealt.set_of.size(); ++row) {
    Dealt::Set& set = dealt.sets[static_cast<size_t>(dealt.set_of[row])];
    set.rows.push_back(static_cast<int32_t>(row));
    set.ordinals.push_back(problem.row_ordinals[row]);
    set.modalities.push_back(problem.row_modalities[row]);
    set.stored = static_cast<int64_t>(set.rows.size());
  }
  return dealt;
}

// Half of all sets have weights, half of them a list, half of them serve some queries only.
inline void mark_sets(Random& random, Problem& problem, Dealt& dealt) {
  weigh_rows(random, problem);
  for (Dealt::Set& set : dealt.sets) {
    set.weighted = random.below(2) == 0;
    if (!set.weighted) {
      for (const int32_t row : set.rows) problem.weights[static_cast<size_t>(row)] = 1;
    }
    if (random.below(2) == 0) {
      set.stored += 1 + random.below(50);
      std::vector<int32_t> places(static_cast<size_t>(set.stored));
      std::iota(places.begin(), places.end(), 0);
      shuffle(random, places);
      set.places.assign(places.begin(), places.begin() + static_cast<int64_t>(set.rows.size()));
    }
    if (random.below(2) == 0) {
      for (int32_t query = 0; query < problem.shape.queries; ++query) {
        if (random.below(3) > 0) set.serves.push_back(query);
      }
    }
  }
}

// The sets on a device. What no list names is not a number.
class PlacedSets {
 public:
  PlacedSets(const Problem& problem, const Dealt& dealt, Device device) {
    const int64_t width = problem.shape.kv_heads * problem.shape.head_size;
    for (const Dealt::Set& set : dealt.sets) {
      const Shape shape{set.stored, problem.shape.kv_heads, problem.shape.head_size};
      const auto pick = [&](const std::vector<float>& all) {
        std::vector<float> rows(static_cast<size_t>(shape.elements()), NAN);
        for (size_t i = 0; i < set.rows.size(); ++i) {
          const int64_t place = set.places.empty() ? static_cast<int64_t>(i) : set.places[i];
          std::copy_n(all.begin() + set.rows[i] * width, width, rows.begin() + place * width);
        }
        tensors_.push_back(tensor_of(rows, shape, problem.shape.dtype, device));
        return ConstTensorView(tensors_.back());
      };
      RowSet view{pick(problem.key_data), pick(problem.value_data), set.ordinals, set.modalities};
      const auto count = static_cast<int64_t>(set.rows.size());
      if (set.weighted) {
        std::vector<float> weights;
        for (const int32_t row : set.rows) {
          weights.push_back(problem.weights[static_cast<size_t>(row)]);
        }
        tensors_.push_back(tensor_of(weights, {count}, DType::f32, device));
        view.weights = tensors_.back();
      }
      if (!set.places.empty()) {
        Tensor list(DType::i32, {count});
        std::copy(set.places.begin(), set.places.end(), list.data<int32_t>());
        tensors_.push_back(list.to(device));
        view.list = tensors_.back();
      }
      view.serves = set.serves;
      sets_.push_back(view);
    }
  }
  std::span<const RowSet> sets() const { return sets_; }

 private:
  std::vector<Tensor> tensors_;
  std::vector<RowSet> sets_;
};

inline QueryView with_parents(QueryView queries, const std::vector<int32_t>& parents) {
  queries.parents = parents;
  return queries;
}

inline void expect_state(const PlacedProblem& placed, const Expected& expected, Device device) {
  const auto max = placed.max(), sum = placed.sum();
  for (size_t i = 0; i < max.size(); ++i) {
    if (std::isinf(expected.log_sum[i])) {
      ASSERT_EQ(sum[i], 0);
      ASSERT_EQ(max[i], -std::numeric_limits<float>::infinity());
    } else {
      ASSERT_NEAR(max[i] + std::log(sum[i]), expected.log_sum[i], device.is_cpu() ? 1e-4 : 1e-3);
    }
  }
}

}  // namespace kinora::testing
