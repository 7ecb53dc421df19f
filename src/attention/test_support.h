// Random attention problems and their answer in double precision, straight from the definition.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention/attention.h"
#include "attention/plan/plan.h"
#include "base/random.h"
#include "base/threads.h"
#include "ops/packed_rows.h"
#include "support/compare.h"
#include "support/exact.h"
#include "support/random_data.h"

namespace kinora::testing {

struct ProblemShape {
  int64_t queries = 1;
  int64_t earlier = 0;  // rows in memory before the group
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_size = 64;
  DType dtype = DType::f32;
  double gaps = 0;  // chance that an ordinal before the group was pruned
};

// Queries are the last tokens of memory, as the decoder leaves them.
struct Problem {
  ProblemShape shape;
  std::vector<float> query_data, key_data, value_data;
  std::vector<uint16_t> key_narrow, value_narrow;  // bits of bf16 or f16
  Tensor packed_keys, packed_values;               // rows of 8 bits
  std::vector<int32_t> row_ordinals, query_ordinals;
  std::vector<Modality> row_modalities, query_modalities;
  std::vector<float> weights;  // [rows]; empty: all 1
  float scale = 1;

  int64_t rows() const { return shape.earlier + shape.queries; }
  QueryView queries() const {
    return {ConstTensorView::of(query_data.data(), {shape.queries, shape.heads, shape.head_size}),
            query_ordinals, query_modalities};
  }
  RowSet memory() const {
    const Shape size{rows(), shape.kv_heads, shape.head_size};
    const auto view = [&](const std::vector<float>& wide, const std::vector<uint16_t>& narrow) {
      if (shape.dtype == DType::f32) return ConstTensorView::of(wide.data(), size);
      const auto* bits = reinterpret_cast<const std::byte*>(narrow.data());
      return ConstTensorView(bits, shape.dtype, size);
    };
    RowSet memory{{}, {}, row_ordinals, row_modalities};
    const bool packed = packed_keys.defined();
    memory.keys = packed ? packed_keys.view() : view(key_data, key_narrow);
    memory.values = packed ? packed_values.view() : view(value_data, value_narrow);
    if (!weights.empty()) memory.weights = ConstTensorView::of(weights.data(), {rows()});
    return memory;
  }
  Shape out_shape() const { return {shape.queries, shape.heads, shape.head_size}; }
};

// Rows [rows, kv heads, head size] in 8 bits; the values become what is stored.
inline Tensor packed_rows(std::vector<float>& values, const Shape& shape, DType type) {
  const ThreadPool one(1);
  Tensor rows(type, {shape[0], shape[1], stored_columns(type, shape[2])});
  store_rows(Context(one), ConstTensorView::of(values.data(), shape), rows);
  widen_rows(Context(one), rows, TensorView::of(values.data(), shape));
  return rows;
}

inline Problem make_problem(Random& random, const ProblemShape& shape) {
  Problem problem;
  problem.shape = shape;
  const int64_t rows = shape.earlier + shape.queries;
  const int64_t row_size = shape.kv_heads * shape.head_size;
  problem.query_data = random_floats(random, shape.queries * shape.heads * shape.head_size, 2.0);
  problem.key_data = random_floats(random, rows * row_size);
  problem.value_data = random_floats(random, rows * row_size);
  problem.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_size));
  if (rows_are_packed(shape.dtype)) {
    const Shape wide{rows, shape.kv_heads, shape.head_size};
    problem.packed_keys = packed_rows(problem.key_data, wide, shape.dtype);
    problem.packed_values = packed_rows(problem.value_data, wide, shape.dtype);
  } else if (shape.dtype != DType::f32) {
    const auto narrow = [&](std::vector<float>& wide) {
      std::vector<uint16_t> out(wide.size());
      const auto round = [&]<typename T>(T) {
        for (size_t i = 0; i < wide.size(); ++i) {
          const T value = T::from_float(wide[i]);
          out[i] = value.bits;
          wide[i] = value.to_float();
        }
      };
      shape.dtype == DType::bf16 ? round(bf16()) : round(f16());
      return out;
    };
    problem.key_narrow = narrow(problem.key_data);
    problem.value_narrow = narrow(problem.value_data);
  }
  int32_t ordinal = 0;
  for (int64_t row = 0; row < rows; ++row) {
    while (row < shape.earlier && random.uniform() < shape.gaps) ++ordinal;
    problem.row_ordinals.push_back(ordinal++);
    problem.row_modalities.push_back(Modality::text);
  }
  for (int64_t row = shape.earlier; row < rows; ++row) {
    problem.query_ordinals.push_back(problem.row_ordinals[static_cast<size_t>(row)]);
    problem.query_modalities.push_back(problem.row_modalities[static_cast<size_t>(row)]);
  }
  return problem;
}

// Weights over seven powers of ten, every fourth of them exactly 1.
inline void weigh_rows(Random& random, Problem& problem) {
  problem.weights.clear();
  for (int64_t row = 0; row < problem.rows(); ++row) {
    const bool plain = random.below(4) == 0;
    problem.weights.push_back(
        plain ? 1 : static_cast<float>(std::pow(10.0, random.uniform(-3.0, 4.0))));
  }
}

// Random runs of modalities over all rows, as frames with text between them would be.
inline void mix_modalities(Random& random, Problem& problem, int kinds, int64_t longest_run) {
  constexpr Modality all[] = {Modality::text, Modality::video, Modality::image, Modality::audio};
  for (size_t row = 0; row < problem.row_modalities.size();) {
    const Modality modality = all[random.below(kinds)];
    for (int64_t left = 1 + random.below(longest_run);
         left > 0 && row < problem.row_modalities.size(); --left) {
      problem.row_modalities[row++] = modality;
    }
  }
  std::copy(problem.row_modalities.begin() + problem.shape.earlier, problem.row_modalities.end(),
            problem.query_modalities.begin());
}

struct Expected {
  std::vector<double> out;      // [queries, heads, head size]
  std::vector<double> rounded;  // the same with weights and result rounded to bf16, as PyTorch does
  std::vector<double> log_sum;  // [queries, heads]: log Σ exp(score); −∞ where nothing is read
  double variance = 0;          // of what f32 arithmetic loses, summed over all of `out`
  std::vector<double> log_errors;  // [queries, heads]: what f32 arithmetic may lose of `log_sum`
};

// ‖error‖ / ‖out‖ that f32 arithmetic may have. Rounding errors of single operations are taken as
// independent, each at most u = 2⁻²⁴ of its result (Higham and Mary's model), and what is allowed
// is five standard deviations of their sum, so that fresh data practically never passes it:
//   a score of d products, in any order    σ_j = u (√d (scale ‖q ∘ k_j‖ + |s_j|) + |s_j − max| + 4)
//   the mean of n values with weights p    Σ p_j² (v_j − out)² σ_j²
//                                          + (u √n (√(Σ p_j² v_j²) + 2 |out|) + 4 u |out|)²
// The 4 stands for the exponential and the few operations on every weight and result.
// A log-sum may be off by five times
//   Σ p_j σ_j  and  u (√n + 4 + |max| + 2 |log-sum|),
// joined as independent: its scores share one rounded query and may err the same way, its sum has n
// terms of one sign, and the maximum, its logarithm and the sum of both are rounded.
inline double f32_tolerance(const Expected& expected) {
  double norm = 0;
  for (const double value : expected.out) norm += value * value;
  return norm > 0 ? 5 * std::sqrt(expected.variance / norm) : 0;
}

// `reads(query, head, row)` says what the plan lets through, causality included.
template <typename Reads>
Expected reference(const Problem& problem, Reads&& reads) {
  const ProblemShape& shape = problem.shape;
  Expected expected;
  expected.out.assign(static_cast<size_t>(shape.queries * shape.heads * shape.head_size), 0.0);
  expected.log_sum.assign(static_cast<size_t>(shape.queries * shape.heads),
                          -std::numeric_limits<double>::infinity());
  expected.rounded = expected.out;
  expected.log_errors.assign(expected.log_sum.size(), 0.0);
  const auto to_bf16 = [](double value) {
    return double{bf16::from_float(static_cast<float>(value)).to_float()};
  };
  constexpr double unit = 0x1p-24;
  std::vector<double> scores(static_cast<size_t>(problem.rows()));
  std::vector<double> score_errors(scores.size()), weights(scores.size());
  std::vector<int64_t> read;  // the rows of any weight
  for (int64_t i = 0; i < shape.queries; ++i) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t kv = h / (shape.heads / shape.kv_heads);
      const float* q =
          &problem.query_data[static_cast<size_t>((i * shape.heads + h) * shape.head_size)];
      const auto offset = [&](int64_t row) {
        return static_cast<size_t>((row * shape.kv_heads + kv) * shape.head_size);
      };
      double max = -std::numeric_limits<double>::infinity();
      for (int64_t row = 0; row < problem.rows(); ++row) {
        double& score = scores[static_cast<size_t>(row)];
        score = -std::numeric_limits<double>::infinity();
        if (!reads(i, h, row)) continue;
        const float* k = &problem.key_data[offset(row)];
        const Dot terms = exact_dot(q, k, shape.head_size);
        score = terms.sum;
        score *= double{problem.scale};
        score_errors[static_cast<size_t>(row)] = double{problem.scale} * std::sqrt(terms.squares);
        if (!problem.weights.empty()) {
          score += std::log(double{problem.weights[static_cast<size_t>(row)]});
        }
        max = std::max(max, score);
      }
      if (std::isinf(max)) continue;
      double sum = 0;
      read.clear();
      for (int64_t row = 0; row < problem.rows(); ++row) {
        const double weight = std::exp(scores[static_cast<size_t>(row)] - max);
        if (weight == 0) continue;
        weights[static_cast<size_t>(row)] = weight;
        read.push_back(row);
        sum += weight;
      }
      expected.log_sum[static_cast<size_t>(i * shape.heads + h)] = max + std::log(sum);
      const auto place = static_cast<size_t>((i * shape.heads + h) * shape.head_size);
      double* out = &expected.out[place];
      double* rounded = &expected.rounded[place];
      for (const int64_t row : read) {
        const double weight = weights[static_cast<size_t>(row)] / sum;
        const double narrow = to_bf16(weights[static_cast<size_t>(row)]) / sum;
        const float* v = &problem.value_data[offset(row)];
        add_scaled(out, weight, v, static_cast<size_t>(shape.head_size));
        add_scaled(rounded, narrow, v, static_cast<size_t>(shape.head_size));
      }
      for (int64_t c = 0; c < shape.head_size; ++c) rounded[c] = to_bf16(rounded[c]);
      std::vector<double> shifts(static_cast<size_t>(shape.head_size)), squares(shifts.size());
      double score_error = 0;  // of all scores together
      for (const int64_t row : read) {
        const double score = scores[static_cast<size_t>(row)];
        const double weight = weights[static_cast<size_t>(row)] / sum;
        const double products = score_errors[static_cast<size_t>(row)] + std::abs(score);
        const double error =
            unit * (std::sqrt(double(shape.head_size)) * products + max - score + 4);
        score_error += weight * error;
        add_squares(shifts.data(), squares.data(), weight, error, &problem.value_data[offset(row)],
                    out, shifts.size());
      }
      const double log_sum = max + std::log(sum);
      const double rest_of_log =
          unit * (std::sqrt(double(read.size())) + 4 + std::abs(max) + 2 * std::abs(log_sum));
      expected.log_errors[static_cast<size_t>(i * shape.heads + h)] =
          5 * std::hypot(score_error, rest_of_log);
      for (size_t c = 0; c < shifts.size(); ++c) {
        const double sums = std::sqrt(squares[c]) + 2 * std::abs(out[c]);
        const double rest = std::sqrt(double(read.size())) * sums + 4 * std::abs(out[c]);
        expected.variance += shifts[c] + std::pow(unit * rest, 2);
      }
    }
  }
  return expected;
}

inline bool causal(const Problem& problem, int64_t query, int64_t row) {
  return problem.row_ordinals[static_cast<size_t>(row)] <=
         problem.query_ordinals[static_cast<size_t>(query)];
}

}  // namespace kinora::testing
