#include "attention/runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>

#include "attention/cuda/device_test_support.h"
#include "attention/merge.h"
#include "attention/policies/dense.h"
#include "attention/test_support.h"
#include "attention/window_attention.h"
#include "base/error.h"

namespace kinora {
namespace {

using testing::all_devices;
using testing::f32_tolerance;
using testing::make_problem;
using testing::PlacedProblem;
using testing::Problem;
using testing::ProblemShape;
using testing::random_plan;
using testing::reference;
using testing::relative_error;

constexpr float poison = std::numeric_limits<float>::quiet_NaN();

std::vector<float> poisoned(const Problem& problem) {
  return std::vector<float>(static_cast<size_t>(problem.out_shape().elements()), poison);
}

double error_of(const std::vector<float>& actual, const std::vector<double>& expected) {
  return relative_error(std::span<const float>(actual), std::span<const double>(expected));
}

const ProblemShape shapes[] = {
    {.queries = 1, .head_size = 64},
    {.queries = 1, .earlier = 5000, .heads = 8, .kv_heads = 2, .head_size = 128},
    {.queries = 3, .earlier = 2300, .heads = 14, .kv_heads = 2, .head_size = 64, .gaps = 0.1},
    {.queries = 63, .earlier = 65, .heads = 4, .kv_heads = 4, .head_size = 72, .gaps = 0.5},
    {.queries = 129, .heads = 7, .kv_heads = 1, .head_size = 128},
    {.queries = 127, .earlier = 257, .heads = 6, .kv_heads = 2, .head_size = 80},
    {.queries = 200, .earlier = 11, .heads = 2, .kv_heads = 1, .head_size = 1},
    {.queries = 130, .earlier = 130, .heads = 3, .kv_heads = 3, .head_size = 19},
    {.queries = 65,
     .earlier = 300,
     .heads = 4,
     .kv_heads = 2,
     .head_size = 128,
     .dtype = DType::bf16,
     .gaps = 0.2},
    {.queries = 40,
     .earlier = 90,
     .heads = 2,
     .kv_heads = 2,
     .head_size = 37,
     .dtype = DType::bf16},
    {.queries = 20, .earlier = 90, .heads = 2, .kv_heads = 2, .head_size = 256},
    {.queries = 3,
     .earlier = 2300,
     .heads = 6,
     .kv_heads = 2,
     .head_size = 64,
     .dtype = DType::f16},
    {.queries = 63,
     .earlier = 130,
     .heads = 4,
     .kv_heads = 2,
     .head_size = 37,
     .dtype = DType::f16},
    {.queries = 1,
     .earlier = 2300,
     .heads = 7,
     .kv_heads = 1,
     .head_size = 128,
     .dtype = DType::i8},
    {.queries = 3,
     .earlier = 129,
     .heads = 4,
     .kv_heads = 2,
     .head_size = 37,
     .dtype = DType::u8,
     .gaps = 0.2},
    {.queries = 65,
     .earlier = 300,
     .heads = 6,
     .kv_heads = 2,
     .head_size = 64,
     .dtype = DType::i8,
     .gaps = 0.2},
    {.queries = 127,
     .earlier = 130,
     .heads = 3,
     .kv_heads = 3,
     .head_size = 19,
     .dtype = DType::u8},
    {.queries = 40, .earlier = 11, .heads = 2, .kv_heads = 1, .head_size = 1, .dtype = DType::i8},
};

// What may be lost: f32 arithmetic, or what bf16 weights and results lose where a GPU has bf16
// rows.
double allowed(const Problem& problem, Device device, const testing::Expected& expected) {
  const double f32 = f32_tolerance(expected);
  if (device.is_cpu() || problem.shape.dtype == DType::f32) return f32;
  return f32 + 2 * relative_error(std::span<const double>(expected.rounded),
                                  std::span<const double>(expected.out));
}

TEST(Runner, DenseMatchesTheDefinition) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  for (const ProblemShape& shape : shapes) {
    Problem problem = make_problem(random, shape);
    if (shape.dtype != DType::f32) testing::narrow_queries(problem);
    for (const Device device : all_devices(shape.dtype)) {
      const auto expected = reference(
          testing::read_on(device, problem),
          [&](int64_t q, int64_t, int64_t row) { return testing::causal(problem, q, row); });
      PlacedProblem placed(problem, device);
      DenseAttention().attend(placed.context(pool), 0, placed.queries(), placed.memory(),
                              problem.scale, placed.out());
      EXPECT_LE(error_of(placed.result(), expected.out), allowed(problem, device, expected))
          << to_string(problem.out_shape()) << ' ' << to_string(device);
    }
  }
}

TEST(Runner, RowsInEightBitsGiveTheBitsOfTheSameRowsInF32) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  for (const ProblemShape& shape : shapes) {
    if (!rows_are_packed(shape.dtype)) continue;
    const Problem problem = make_problem(random, shape);
    Problem wide = problem;
    wide.shape.dtype = DType::f32;
    wide.packed_keys = wide.packed_values = Tensor();
    auto out = poisoned(problem), expected = poisoned(problem);
    const auto run = [&](const Problem& given, std::vector<float>& to) {
      DenseAttention().attend(Context(pool), 0, given.queries(), given.memory(), given.scale,
                              TensorView::of(to.data(), given.out_shape()));
    };
    run(problem, out);
    run(wide, expected);
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0)
        << to_string(problem.out_shape());
  }
}

// The step of every element of rows [.., head size] in 8 bits.
std::vector<double> steps_of(const std::vector<float>& rows, int64_t head_size, DType type) {
  std::vector<double> steps(rows.size());
  for (size_t head = 0; head < rows.size(); head += static_cast<size_t>(head_size)) {
    for (int64_t first = 0; first < head_size; first += 32) {
      const int64_t count = std::min<int64_t>(32, head_size - first);
      const auto begin = head + static_cast<size_t>(first);
      double largest = 0;
      for (size_t i = begin; i < begin + static_cast<size_t>(count); ++i) {
        largest = std::max(largest, std::abs(double{rows[i]}));
      }
      for (size_t i = begin; i < begin + static_cast<size_t>(count); ++i) {
        if (type == DType::i8) {
          steps[i] = largest / 127;
        } else {
          const double code = std::max(std::abs(double{rows[i]}) / (largest / 448), 0x1p-6);
          steps[i] = largest / 448 * std::exp2(std::floor(std::log2(code)) - 3);
        }
      }
    }
  }
  return steps;
}

// ‖error‖ / ‖out‖ that is expected of dense causal attention over these rows in 8 bits.
double packing_error(const Problem& problem, const testing::Expected& expected, DType type) {
  const ProblemShape& shape = problem.shape;
  const std::vector<double> key_steps = steps_of(problem.key_data, shape.head_size, type);
  const std::vector<double> value_steps = steps_of(problem.value_data, shape.head_size, type);
  double variance = 0, norm = 0;
  for (const double value : expected.out) norm += value * value;
  for (int64_t i = 0; i < shape.queries * shape.heads; ++i) {
    const int64_t kv = i % shape.heads / (shape.heads / shape.kv_heads);
    const float* query = problem.query_data.data() + i * shape.head_size;
    const double* out = expected.out.data() + i * shape.head_size;
    for (int64_t row = 0; row < problem.rows(); ++row) {
      if (!testing::causal(problem, i / shape.heads, row)) continue;
      const auto at = static_cast<size_t>((row * shape.kv_heads + kv) * shape.head_size);
      double score = 0, lost = 0;
      for (size_t c = 0; c < static_cast<size_t>(shape.head_size); ++c) {
        score += double{query[c]} * double{problem.key_data[at + c]};
        lost += std::pow(double{query[c]} * key_steps[at + c], 2) / 12;
      }
      const double scale = double{problem.scale};
      const double weight = std::exp(score * scale - expected.log_sum[static_cast<size_t>(i)]);
      for (size_t c = 0; c < static_cast<size_t>(shape.head_size); ++c) {
        const double apart = double{problem.value_data[at + c]} - out[c];
        variance += weight * weight *
                    (apart * apart * lost * scale * scale + std::pow(value_steps[at + c], 2) / 12);
      }
    }
  }
  return std::sqrt(variance / norm);
}

// Rows of 8 bits against attention over what was rounded. A rounding error is taken as spread
// evenly over a step, with variance step²/12, and as independent of the others:
//   of a score                             σ_j² = scale² Σ_c q_c² step_jc² / 12
//   of the mean of values with weights p   Σ_j p_j² (v_jc − out_c)² σ_j² + p_j² step_jc² / 12
// Thousands of elements are added up, so that twice the expected norm is never passed.
TEST(Runner, RowsInEightBitsLoseWhatTheirStepsSay) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  for (const int64_t queries : {2, 63}) {
    for (const DType type : {DType::i8, DType::u8}) {
      const Problem exact = make_problem(
          random,
          {.queries = queries, .earlier = 501, .heads = 12, .kv_heads = 4, .head_size = 72});
      Problem packed = exact;
      packed.shape.dtype = type;
      const Shape shape{exact.rows(), 4, 72};
      packed.packed_keys = testing::packed_rows(packed.key_data, shape, type);
      packed.packed_values = testing::packed_rows(packed.value_data, shape, type);
      const auto seen = [&](int64_t q, int64_t, int64_t row) {
        return testing::causal(exact, q, row);
      };
      const auto expected = reference(exact, seen);
      auto out = poisoned(packed);
      DenseAttention().attend(Context(pool), 0, packed.queries(), packed.memory(), packed.scale,
                              TensorView::of(out.data(), packed.out_shape()));
      EXPECT_LT(error_of(out, expected.out), 2 * packing_error(exact, expected, type))
          << row_type_name(type);
    }
  }
}

TEST(Runner, AnyPlanMatchesItsMask) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(3);
  for (const ProblemShape& shape : shapes) {
    Problem problem = make_problem(random, shape);
    if (shape.dtype != DType::f32) testing::narrow_queries(problem);
    const Plan plan = random_plan(random, problem);
    for (const Device device : all_devices(shape.dtype)) {
      const auto expected = testing::reference_of(testing::read_on(device, problem), plan);
      SCOPED_TRACE(to_string(problem.out_shape()) + " " + to_string(device));
      PlacedProblem placed(problem, device);
      run_plan(placed.context(pool), plan, placed.queries(), placed.memory(), problem.scale,
               placed.out(), {.state = placed.state()});
      EXPECT_LE(error_of(placed.result(), expected.out), allowed(problem, device, expected));
      const auto max = placed.max(), sum = placed.sum();
      for (size_t i = 0; i < max.size(); ++i) {
        if (std::isinf(expected.log_sum[i])) {
          EXPECT_EQ(sum[i], 0);
          EXPECT_EQ(max[i], -std::numeric_limits<float>::infinity());
        } else {
          EXPECT_NEAR(max[i] + std::log(sum[i]), expected.log_sum[i], expected.log_errors[i]);
        }
      }
    }
  }
}

TEST(Runner, ResultsDependNeitherOnTilesNorOnThreads) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool one(1), three(3);
  const Problem problem = make_problem(
      random,
      {.queries = 700, .earlier = 333, .heads = 6, .kv_heads = 2, .head_size = 72, .gaps = 0.2});
  auto dense = poisoned(problem);
  auto again = poisoned(problem);
  auto other = poisoned(problem);
  const auto view = [&](std::vector<float>& out) {
    return TensorView::of(out.data(), problem.out_shape());
  };
  const Plan plan = dense_plan(problem.queries(), problem.memory());
  run_plan(Context(one), plan, problem.queries(), problem.memory(), problem.scale, view(dense));
  run_plan(Context(three), plan, problem.queries(), problem.memory(), problem.scale, view(again));
  PlanBuilder builder(problem.queries(), problem.memory());
  for (int head = 0; head < 6; ++head) {
    // Every seventh query together: the same keys in the same order, in very different tiles.
    for (int64_t phase = 0; phase < 7; ++phase) {
      builder.begin_queries();
      for (int64_t q = phase; q < 700; q += 7) builder.add_query(static_cast<int32_t>(q));
      builder.begin_segments();
      builder.add_rows(0, 100);
      builder.add_rows(100, problem.rows() - 100);
      builder.add_tile(head);
    }
  }
  run_plan(Context(three), builder.take(), problem.queries(), problem.memory(), problem.scale,
           view(other));
  EXPECT_EQ(std::memcmp(dense.data(), again.data(), dense.size() * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(dense.data(), other.data(), dense.size() * sizeof(float)), 0);
}

TEST(Runner, PartsMergeToTheWhole) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Problem problem = make_problem(
      random, {.queries = 33, .earlier = 500, .heads = 2, .kv_heads = 1, .head_size = 64});
  const Context context(pool);
  const auto part = [&](int64_t begin, int64_t count, std::vector<float>& out,
                        std::vector<float>& max, std::vector<float>& sum) {
    PlanBuilder builder(problem.queries(), problem.memory());
    builder.begin_queries();
    builder.add_query_range(0, 33);
    builder.begin_segments();
    builder.add_rows(begin, count);
    builder.add_tile(0, 2);
    out = poisoned(problem);
    max.assign(66, poison);
    sum.assign(66, poison);
    run_plan(context, builder.take(), problem.queries(), problem.memory(), problem.scale,
             TensorView::of(out.data(), problem.out_shape()), {.state = {max.data(), sum.data()}});
  };
  std::vector<float> a, b, max_a, max_b, sum_a, sum_b;
  part(0, 510, a, max_a, sum_a);
  part(510, 23, b, max_b, sum_b);  // the first ten queries see nothing of it
  for (size_t i = 0; i < 66; ++i) {
    PartialRow row{a.data() + i * 64, max_a[i], sum_a[i]};
    merge_row(row, b.data() + i * 64, max_b[i], sum_b[i], 64);
  }
  const auto expected = reference(
      problem, [&](int64_t q, int64_t, int64_t row) { return testing::causal(problem, q, row); });
  EXPECT_LT(error_of(a, expected.out), f32_tolerance(expected));
  PartialRow nothing{b.data(), -std::numeric_limits<float>::infinity(), 0};
  merge_row(nothing, a.data(), max_a[0], sum_a[0], 64);
  EXPECT_EQ(std::memcmp(b.data(), a.data(), 64 * sizeof(float)), 0);
}

TEST(Runner, PassesMergeInPlace) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  for (const int64_t count : {3, 300}) {
    const Problem problem = make_problem(
        random, {.queries = count, .earlier = 4000, .heads = 4, .kv_heads = 2, .head_size = 72});
    PlanBuilder builder(problem.queries(), problem.memory());
    // Odd rows, then even rows for all but the first query: another order, another tiling.
    for (int head = 0; head < 4; head += 2) {
      builder.begin_queries();
      builder.add_query_range(0, count);
      builder.begin_segments();
      builder.add_rows(1, problem.rows() / 2, 2);
      builder.add_tile(head, 2, 0);
      builder.begin_queries();
      builder.add_query_range(1, count);
      builder.begin_segments();
      builder.add_rows(0, (problem.rows() + 1) / 2, 2);
      builder.add_tile(head, 1, 1);
      builder.add_tile(head + 1, 1, 1);
    }
    const Plan plan = builder.take();
    const auto expected = reference(problem, [&](int64_t q, int64_t, int64_t row) {
      return testing::causal(problem, q, row) && (q > 0 || row % 2 == 1);
    });
    for (const Device device : all_devices()) {
      PlacedProblem placed(problem, device);
      run_plan(placed.context(pool), plan, placed.queries(), placed.memory(), problem.scale,
               placed.out());
      EXPECT_LT(error_of(placed.result(), expected.out), f32_tolerance(expected))
          << count << ' ' << to_string(device);
    }
  }
}

TEST(Runner, SurvivesScoresFarApart) {
  const ThreadPool pool(1);
  KINORA_FRESH_RANDOM(random);
  Problem problem = make_problem(random, {.queries = 20, .earlier = 300, .head_size = 8});
  problem.scale = 40;  // differences of thousands: every exponential but a few is zero
  const auto expected = reference(
      problem, [&](int64_t q, int64_t, int64_t row) { return testing::causal(problem, q, row); });
  for (const Device device : all_devices()) {
    PlacedProblem placed(problem, device);
    DenseAttention().attend(placed.context(pool), 0, placed.queries(), placed.memory(),
                            problem.scale, placed.out());
    EXPECT_LT(error_of(placed.result(), expected.out), 1e-3) << to_string(device);
  }
}

class Recorder final : public BlockObserver {
 public:
  Recorder(int64_t size, int64_t queries, int64_t heads, int64_t blocks)
      : size_(size),
        heads_(heads),
        blocks_(blocks),
        scores(static_cast<size_t>(queries * heads * blocks), poison) {}
  int64_t block_size() const override { return size_; }
  void observe(int64_t block, int64_t count, const int32_t* query, const int32_t* head,
               const float* score) override {
    for (int64_t i = 0; i < count; ++i) {
      scores[static_cast<size_t>((query[i] * heads_ + head[i]) * blocks_ + block)] = score[i];
    }
  }

 private:
  int64_t size_, heads_, blocks_;

 public:
  std::vector<float> scores;  // [queries, heads, blocks]
};

TEST(Runner, ObserverSeesTheWeightOfEveryBlock) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  for (const int64_t size : {32, 64}) {
    const Problem problem = make_problem(
        random, {.queries = 70, .earlier = 401, .heads = 4, .kv_heads = 2, .head_size = 64});
    const int64_t blocks = (problem.rows() + size - 1) / size;
    Recorder recorder(size, 70, 4, blocks);
    auto out = poisoned(problem);
    run_plan(Context(pool), dense_plan(problem.queries(), problem.memory()), problem.queries(),
             problem.memory(), problem.scale, TensorView::of(out.data(), problem.out_shape()),
             {.observer = &recorder});
    for (int64_t block = 0; block < blocks; ++block) {
      const auto expected = reference(problem, [&](int64_t q, int64_t, int64_t row) {
        return row / size == block && testing::causal(problem, q, row);
      });
      for (size_t i = 0; i < 280; ++i) {
        const float score =
            recorder.scores[i * static_cast<size_t>(blocks) + static_cast<size_t>(block)];
        const double wanted = expected.log_sum[i] / std::log(2.0);
        // Blocks that lie after a whole tile's last query are not announced.
        if (std::isinf(wanted)) {
          EXPECT_FALSE(score > -1e30f);
        } else {
          EXPECT_NEAR(score, wanted, expected.log_errors[i] / std::log(2.0));
        }
      }
    }
  }
}

// Tiles of few queries use keys and values where they lie, others pack them: the same bits.
TEST(Runner, WhatIsNotPackedHasTheBitsOfWhatIs) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i8}) {
    for (const int64_t head_size : {1, 7, 16, 64, 80, 129}) {
      Problem problem = make_problem(random, {.queries = 48,
                                              .earlier = 200 + random.below(500),
                                              .heads = 6,
                                              .kv_heads = 2,
                                              .head_size = head_size,
                                              .dtype = dtype,
                                              .gaps = random.below(2) * 0.3});
      if (random.below(2) == 0) testing::weigh_rows(random, problem);
      const auto run = [&](int64_t tile) {
        PlanBuilder builder(problem.queries(), problem.memory());
        for (int64_t begin = 0; begin < 48; begin += tile) {
          builder.begin_queries();
          builder.add_query_range(begin, std::min<int64_t>(begin + tile, 48));
          builder.begin_segments();
          builder.add_rows(0, problem.rows());
          builder.add_tile(0, 3);
          builder.add_tile(3, 3);
        }
        const Plan plan = builder.take();
        std::vector<float> out = poisoned(problem);
        run_plan(Context(pool), plan, problem.queries(), problem.memory(), problem.scale,
                 TensorView::of(out.data(), problem.out_shape()));
        return out;
      };
      SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << ", head size " << head_size);
      const std::vector<float> packed = run(48);
      const auto expected = reference(problem, [&](int64_t q, int64_t, int64_t row) {
        return testing::causal(problem, q, row);
      });
      EXPECT_LE(testing::relative_error(std::span<const float>(packed),
                                        std::span<const double>(expected.out)),
                testing::f32_tolerance(expected));
      for (const int64_t tile : {4, 5, 6, 9, 10}) {  // 12 to 30 rows
        const std::vector<float> in_place = run(tile);
        EXPECT_EQ(std::memcmp(in_place.data(), packed.data(), packed.size() * sizeof(float)), 0)
            << "tiles of " << tile;
      }
    }
  }
}

// Cancels when it first sees a block, and counts those that come after that.
class Impatient final : public BlockObserver {
 public:
  explicit Impatient(CancelToken cancel) : cancel_(std::move(cancel)) {}
  int64_t block_size() const override { return 64; }
  void observe(int64_t, int64_t count, const int32_t*, const int32_t*, const float*) override {
    cancel_.cancel();
    seen += count;
  }

  int64_t seen = 0;

 private:
  CancelToken cancel_;
};

TEST(Runner, IsCancelledBetweenPiecesOfWork) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool one(1);
  const Problem problem = make_problem(
      random, {.queries = 1000, .earlier = 300, .heads = 4, .kv_heads = 2, .head_size = 16});
  const CancelToken cancel;
  QueryView queries = problem.queries();
  const auto run = [&](BlockObserver* observer) {
    std::vector<float> out = poisoned(problem);
    run_plan(Context(one), dense_plan(queries, problem.memory()), queries, problem.memory(),
             problem.scale, TensorView::of(out.data(), problem.out_shape()),
             {.observer = observer});
  };
  Impatient all(cancel);
  run(&all);  // nobody asks the token
  queries.cancel = &cancel;
  const auto expect_cancelled = [&](BlockObserver* observer) {
    try {
      run(observer);
      ADD_FAILURE() << "it went on to the end";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::cancelled);
    }
  };
  expect_cancelled(nullptr);
  const CancelToken later;
  queries.cancel = &later;
  Impatient some(later);
  expect_cancelled(&some);
  EXPECT_GT(some.seen, 0);
  EXPECT_LT(some.seen, all.seen / 4);
}

TEST(Runner, WindowsSeeThemselvesOnly) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  for (const int64_t head_size : {64, 72, 80, 33}) {
    const std::vector<int32_t> offsets{0, 1, 64, 64, 129, 300, 303};
    const int64_t n = 303, heads = 3;
    Problem problem = make_problem(
        random, {.queries = n, .heads = heads, .kv_heads = heads, .head_size = head_size});
    // One fused [n, 3, heads, d] projection, read in place.
    std::vector<float> fused(static_cast<size_t>(3 * n * heads * head_size));
    const int64_t row = heads * head_size;
    for (int64_t i = 0; i < n; ++i) {
      std::copy_n(&problem.query_data[static_cast<size_t>(i * row)], row,
                  &fused[static_cast<size_t>(3 * i * row)]);
      std::copy_n(&problem.key_data[static_cast<size_t>(i * row)], row,
                  &fused[static_cast<size_t>((3 * i + 1) * row)]);
      std::copy_n(&problem.value_data[static_cast<size_t>(i * row)], row,
                  &fused[static_cast<size_t>((3 * i + 2) * row)]);
    }
    const auto slice = [&](int64_t part) {
      return ConstTensorView(reinterpret_cast<const std::byte*>(fused.data() + part * row),
                             DType::f32, {n, heads, head_size}, {3 * row, head_size, 1},
                             Device::cpu());
    };
    auto out = poisoned(problem);
    attend_windows(Context(pool), slice(0), slice(1), slice(2), offsets, problem.scale,
                   TensorView::of(out.data(), problem.out_shape()));
    const auto window = [&](int64_t i) {
      return std::upper_bound(offsets.begin(), offsets.end(), i) - offsets.begin();
    };
    const auto expected =
        reference(problem, [&](int64_t q, int64_t, int64_t k) { return window(q) == window(k); });
    EXPECT_LT(error_of(out, expected.out), f32_tolerance(expected)) << head_size;
    const std::vector<int32_t> bad{0, 64, 63, 303};
    EXPECT_THROW(attend_windows(Context(pool), slice(0), slice(1), slice(2), bad, 1.0f,
                                TensorView::of(out.data(), problem.out_shape())),
                 Error);
  }
}

TEST(Runner, ChecksBeforeItComputes) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Problem problem = make_problem(random, {.queries = 5, .head_size = 8});
  auto out = poisoned(problem);
  Plan plan = dense_plan(problem.queries(), problem.memory());
  plan.segments.back().count += 1;
  EXPECT_THROW(run_plan(Context(pool), plan, problem.queries(), problem.memory(), 1.0f,
                        TensorView::of(out.data(), problem.out_shape())),
               Error);
  for (const float value : out) EXPECT_TRUE(std::isnan(value));
  EXPECT_THROW(
      run_plan(Context(pool), dense_plan(problem.queries(), problem.memory()), problem.queries(),
               problem.memory(), 1.0f, TensorView::of(out.data(), {5, 8, 1})),
      Error);
}

}  // namespace
}  // namespace kinora
