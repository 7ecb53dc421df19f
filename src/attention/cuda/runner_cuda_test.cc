// What only the GPU kernels have: bf16 everywhere, jobs across heads, split lists and many sizes;
// decode_cuda_test.cc has decoding. Without a GPU the tests of device code are skipped; those of
// the compiled plans run anywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "attention/cuda/cuda_compile.h"
#include "attention/cuda/device_test_support.h"
#include "attention/policies/dense.h"
#include "attention/window_attention.h"
#include "base/error.h"
#include "base/gpu.h"

namespace kinora {
namespace {

using testing::allowed;
using testing::error_of;
using testing::Expected;
using testing::make_problem;
using testing::OnGpu;
using testing::PlacedProblem;
using testing::Problem;
using testing::ProblemShape;
using testing::relative_error;

Problem make_bf16(Random& random, ProblemShape shape) {
  shape.dtype = DType::bf16;
  Problem problem = make_problem(random, shape);
  testing::narrow_queries(problem);
  return problem;
}

// How often every (query, head) reads every row, by walking the compiled plan as a kernel does.
std::vector<uint8_t> walk(const CudaPlan& plan, const Problem& problem, const CudaCut& cut) {
  const int64_t rows = problem.rows(), heads = problem.shape.heads;
  std::vector<uint8_t> reads(static_cast<size_t>(problem.shape.queries * heads * rows));
  CudaPlanView view;
  view.limits = plan.limits.empty() ? nullptr : plan.limits.data();
  view.limit_base = plan.limit_base;
  for (const CudaJob& job : plan.jobs) {
    int32_t block = 0;
    for (int32_t s = 0; s < job.segments; ++s) {
      CudaSegment segment = plan.segments[static_cast<size_t>(job.segment_begin + s)];
      segment.trim(job.low, job.high);
      for (int32_t at = 0; at < segment.count; at += cut.block_keys, ++block) {
        if (block < job.first_block || block >= job.first_block + job.blocks) continue;
        for (int32_t key = at; key < std::min(at + cut.block_keys, segment.count); ++key) {
          const int64_t row = segment.stride == 0
                                  ? plan.gathered[static_cast<size_t>(segment.begin + key)]
                                  : segment.begin + int64_t{key} * segment.stride;
          for (int64_t r = job.row_begin; r < job.row_begin + job.rows; ++r) {
            const int64_t step = r / job.heads;
            const int64_t query = job.listed
                                      ? plan.queries[static_cast<size_t>(job.query_begin + step)]
                                      : job.query_begin + step;
            if (key >= segment.full && row >= view.limit(query)) continue;
            ++reads[static_cast<size_t>((query * heads + job.head + r % job.heads) * rows + row)];
          }
        }
      }
    }
    EXPECT_LE(job.first_block + job.blocks, block) << "more blocks than the list has";
    EXPECT_LE(job.rows, cut.job_rows);
  }
  return reads;
}

void expect_reads(const CudaPlan& plan, const Problem& problem, const CudaCut& cut,
                  const Plan& wanted) {
  const auto reads = walk(plan, problem, cut);
  for (int head = 0; head < problem.shape.heads; ++head) {
    const auto mask = expand(wanted, problem.queries(), problem.memory(), head);
    for (int64_t q = 0; q < problem.shape.queries; ++q) {
      for (int64_t row = 0; row < problem.rows(); ++row) {
        ASSERT_EQ(
            reads[static_cast<size_t>((q * problem.shape.heads + head) * problem.rows() + row)],
            mask[static_cast<size_t>(q * problem.rows() + row)])
            << q << ' ' << head << ' ' << row;
      }
    }
  }
}

TEST(CudaPlan, ReadsWhatThePlanSays) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 40; ++round) {
    const int64_t group = 1 + random.below(4), kv_heads = 1 + random.below(2);
    const Problem problem = make_problem(random, {.queries = 1 + random.below(200),
                                                  .earlier = random.below(400),
                                                  .heads = group * kv_heads,
                                                  .kv_heads = kv_heads,
                                                  .head_size = 1,
                                                  .gaps = random.below(2) * 0.2});
    const CudaCut cut{.job_rows = static_cast<int32_t>(8 + random.below(130)),
                      .block_keys = static_cast<int32_t>(16 << random.below(4)),
                      .processors = static_cast<int32_t>(1 + random.below(200)),
                      .split = random.below(3) > 0};
    const Plan plan = testing::random_plan(random, problem, 1 + random.below(300));
    expect_reads(compile_plan(plan, problem.query_ordinals, problem.row_ordinals, cut), problem,
                 cut, plan);
    const Plan dense = dense_plan(problem.queries(), problem.memory());
    expect_reads(compile_plan(dense, problem.query_ordinals, problem.row_ordinals, cut), problem,
                 cut, dense);
    expect_reads(compile_dense({group * kv_heads, kv_heads, problem.shape.queries, problem.rows()},
                               problem.query_ordinals, problem.row_ordinals, cut),
                 problem, cut, dense);
  }
}

TEST(CudaPlan, StridesAreListedOnce) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t strides : {1, 5, 32, 33, 50}) {
    const Problem problem = make_problem(random, {.queries = 3, .earlier = 40'000, .head_size = 1});
    PlanBuilder builder(problem.queries(), problem.memory());
    for (int64_t i = 0; i < 3 * strides; ++i) {
      builder.begin_queries();
      builder.add_query(static_cast<int32_t>(i % 3));
      builder.begin_segments();
      builder.add_rows(random.below(100), 200, static_cast<int32_t>(2 + i % strides));
      builder.add_tile(0, 1, static_cast<int>(i / strides));
    }
    const CudaPlan plan = compile_plan(builder.take(), problem.query_ordinals, problem.row_ordinals,
                                       {128, 128, 132, false});
    EXPECT_EQ(std::ssize(plan.strides), std::min<int64_t>(strides, most_stride_maps));
    EXPECT_EQ(std::set(plan.strides.begin(), plan.strides.end()).size(), plan.strides.size());
    EXPECT_EQ(plan.any_row_lists, strides > most_stride_maps);
    for (const CudaSegment& segment : plan.segments) {
      if (segment.shift >= 0) {
        EXPECT_EQ(plan.strides.at(static_cast<size_t>(segment.shift)), segment.stride);
      } else {
        EXPECT_TRUE(std::ranges::find(plan.strides, segment.stride) == plan.strides.end());
      }
    }
  }
}

TEST(CudaPlan, EveryRowHasAPlaceInItsStride) {
  for (const int32_t rows : {1, 2, 63, 64, 65, 127, 128, 129, 1000, 4099}) {
    for (const int32_t stride : {2, 3, 7, 8, 63, 64, 65, 999, 1000, 1001, 5000}) {
      const StrideLayout layout(rows, stride);
      int64_t places = int64_t{layout.longer} * (layout.steps + 1);
      if (layout.steps > 0) places += int64_t{stride - layout.longer} * layout.steps;
      ASSERT_EQ(places, rows);  // no map has a hole, so no copy leaves the rows
      for (int32_t row = 0; row < rows; ++row) {
        const StrideLayout::Place at = layout.place(row);
        const int32_t first = at.of_longer != 0 ? 0 : layout.longer;
        ASSERT_EQ(first + at.phase + at.step * stride, row);
        ASSERT_LT(at.phase, at.of_longer != 0 ? layout.longer : stride - layout.longer);
        ASSERT_LT(at.step, layout.steps + at.of_longer);
      }
    }
  }
}

TEST(CudaPlan, DenseNeedsNoLists) {
  std::vector<int32_t> rows(100'000), queries(50'000);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i + 7);
  for (size_t i = 0; i < queries.size(); ++i) queries[i] = static_cast<int32_t>(i + 50'007);
  const CudaPlan plan =
      compile_dense({28, 4, 50'000, 100'000}, queries, rows, {128, 128, 132, true});
  EXPECT_EQ(plan.segments.size(), 1u);
  EXPECT_TRUE(plan.limits.empty() && plan.queries.empty() && plan.gathered.empty());
  EXPECT_EQ(plan.limit_base, 50'001);
  EXPECT_EQ(plan.jobs.size(), static_cast<size_t>((50'000 * 7 + 127) / 128 * 4));
}

using CudaRunner = OnGpu;

class CudaRunnerOfHeads : public OnGpu, public ::testing::WithParamInterface<int64_t> {};

TEST_P(CudaRunnerOfHeads, DenseInBf16LosesNoMoreThanTwiceAReference) {
  KINORA_FRESH_RANDOM(random);
  struct Size {
    int64_t queries, rows, heads, kv_heads;
  };
  const Size sizes[] = {{1, 1, 2, 1},     {63, 63, 4, 4},     {64, 64, 4, 2},   {65, 65, 7, 1},
                        {127, 127, 2, 2}, {128, 128, 6, 2},   {129, 129, 4, 1}, {113, 203, 4, 2},
                        {203, 203, 3, 3}, {1023, 1024, 4, 2}, {16, 4224, 7, 1}, {1, 3000, 28, 4},
                        {700, 4224, 2, 1}};
  const int64_t head_size = GetParam();
  for (const Size& size : sizes) {
    if (head_size != 128 && head_size != 64 && size.rows > 1024) continue;
    const Problem problem = make_bf16(random, {.queries = size.queries,
                                               .earlier = size.rows - size.queries,
                                               .heads = size.heads,
                                               .kv_heads = size.kv_heads,
                                               .head_size = head_size,
                                               .gaps = random.below(2) * 0.1});
    const Expected expected = testing::reference(
        problem, [&](int64_t q, int64_t, int64_t row) { return testing::causal(problem, q, row); });
    for (const DType type : {DType::bf16, DType::f32}) {
      PlacedProblem placed(problem, device_, type, type);
      DenseAttention().attend(placed.context(pool_), 0, placed.queries(), placed.memory(),
                              problem.scale, placed.out());
      EXPECT_LE(error_of(placed.result(), expected.out), allowed(expected))
          << to_string(problem.out_shape()) << ' ' << problem.rows() << ' ' << dtype_name(type);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaRunnerOfHeads, ::testing::Values(128, 64, 72, 80, 40));

TEST_F(CudaRunner, AnyPlanInBf16MatchesItsMask) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t head_size : {128, 64, 80}) {
    for (const int64_t longest : {20, 90, 700}) {
      const Problem problem = make_bf16(random, {.queries = 300,
                                                 .earlier = 900,
                                                 .heads = 6,
                                                 .kv_heads = 2,
                                                 .head_size = head_size,
                                                 .gaps = 0.1});
      const Plan plan = testing::random_plan(random, problem, longest);
      const Expected expected = testing::reference_of(problem, plan);
      PlacedProblem placed(problem, device_, DType::bf16);
      run_plan(placed.context(pool_), plan, placed.queries(), placed.memory(), problem.scale,
               placed.out(), {.state = placed.state()});
      EXPECT_LE(error_of(placed.result(), expected.out), allowed(expected))
          << head_size << ' ' << longest;
      const auto max = placed.max(), sum = placed.sum();
      for (size_t i = 0; i < max.size(); ++i) {
        if (std::isinf(expected.log_sum[i])) {
          EXPECT_EQ(sum[i], 0);
          EXPECT_EQ(max[i], -std::numeric_limits<float>::infinity());
        } else {
          EXPECT_NEAR(max[i] + std::log(sum[i]), expected.log_sum[i], 1e-3);
        }
      }
    }
  }
}

// Tiles of queries that lie apart read lines of one stride a head, in phases of their own, and
// where `gathers` some rows between the lines as well.
Plan line_plan_of(Random& random, const Problem& problem, std::span<const int32_t> strides,
                  bool gathers) {
  PlanBuilder builder(problem.queries(), problem.memory());
  for (int head = 0; head < problem.shape.heads; ++head) {
    const int32_t stride = strides[static_cast<size_t>(head) % strides.size()];
    const int64_t classes = 1 + random.below(std::min<int64_t>(5, problem.shape.queries));
    for (int64_t first = 0; first < classes; ++first) {
      builder.begin_queries();
      for (int64_t q = first; q < problem.shape.queries; q += classes) {
        builder.add_query(static_cast<int32_t>(q));
      }
      builder.begin_segments();
      std::set<int64_t> phases;
      const int64_t wanted = random.below(5) == 0 ? 0 : 1 + random.below(4);
      for (int64_t i = 0; i < wanted; ++i) phases.insert(random.below(stride));
      for (const int64_t phase : phases) {
        const int64_t begin = phase + random.below(3) * stride;
        if (begin >= problem.rows()) continue;
        const int64_t count = (problem.rows() - begin + stride - 1) / stride;
        builder.add_rows(begin, random.below(2) == 0 ? count : random.below(count + 1), stride);
      }
      std::vector<int32_t> between;
      for (int32_t row = 0; gathers && row < problem.rows(); ++row) {
        if (!phases.contains(row % stride) && random.below(4) == 0) between.push_back(row);
      }
      builder.add_gathered(between);
      builder.add_tile(head);
    }
  }
  return builder.take();
}

TEST_F(CudaRunner, StridedKeysInBf16MatchTheirMask) {
  KINORA_FRESH_RANDOM(random);
  struct Size {
    int64_t queries, rows;
  };
  const Size sizes[] = {{1, 1},     {1, 63},    {63, 63},    {65, 65},    {127, 127},
                        {129, 129}, {65, 1027}, {100, 1500}, {130, 2001}, {20, 6000}};
  const std::vector<std::vector<int32_t>> strides{
      {2}, {8}, {2, 3, 5, 7}, {4, 16, 64, 129, 1000, 5000}};
  for (const Size& size : sizes) {
    for (const auto& some : strides) {
      const Problem problem = make_bf16(random, {.queries = size.queries,
                                                 .earlier = size.rows - size.queries,
                                                 .heads = 6,
                                                 .kv_heads = 3,
                                                 .head_size = 64 << random.below(2),
                                                 .gaps = random.below(2) * 0.1});
      for (const bool gathers : {false, true}) {
        const Plan plan = line_plan_of(random, problem, some, gathers);
        const Expected expected = testing::reference_of(problem, plan);
        PlacedProblem placed(problem, device_, DType::bf16);
        run_plan(placed.context(pool_), plan, placed.queries(), placed.memory(), problem.scale,
                 placed.out());
        EXPECT_LE(error_of(placed.result(), expected.out), allowed(expected))
            << size.queries << " of " << size.rows << ", stride " << some.front() << ", size "
            << problem.shape.head_size << (gathers ? ", gathers" : "");
      }
    }
  }
}

TEST_F(CudaRunner, MoreStridesThanTheCopyEngineKnows) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make_bf16(
      random, {.queries = 150, .earlier = 3000, .heads = 40, .kv_heads = 4, .head_size = 128});
  std::vector<int32_t> strides;
  for (int32_t stride = 2; stride < 42; ++stride) strides.push_back(stride);
  const Plan plan = line_plan_of(random, problem, strides, false);
  const Expected expected = testing::reference_of(problem, plan);
  PlacedProblem placed(problem, device_, DType::bf16);
  run_plan(placed.context(pool_), plan, placed.queries(), placed.memory(), problem.scale,
           placed.out());
  EXPECT_LE(error_of(placed.result(), expected.out), allowed(expected));
}

TEST_F(CudaRunner, PassesMergeInBf16) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t count : {3, 300}) {
    const Problem problem = make_bf16(
        random, {.queries = count, .earlier = 3000, .heads = 4, .kv_heads = 2, .head_size = 128});
    PlanBuilder builder(problem.queries(), problem.memory());
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
    const Expected expected = testing::reference_of(problem, plan);
    PlacedProblem placed(problem, device_, DType::bf16);
    run_plan(placed.context(pool_), plan, placed.queries(), placed.memory(), problem.scale,
             placed.out());
    EXPECT_LE(error_of(placed.result(), expected.out), allowed(expected)) << count;
  }
}

TEST_F(CudaRunner, ListsOfEverythingEqualDenseBitForBit) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t head_size : {128, 64, 80}) {
    const Problem problem = make_bf16(random, {.queries = 700,
                                               .earlier = 333,
                                               .heads = 6,
                                               .kv_heads = 2,
                                               .head_size = head_size,
                                               .gaps = 0.2});
    PlacedProblem dense(problem, device_, DType::bf16), listed(problem, device_, DType::bf16);
    DenseAttention().attend(dense.context(pool_), 0, dense.queries(), dense.memory(), problem.scale,
                            dense.out());
    PlanBuilder builder(problem.queries(), problem.memory());
    for (int head = 0; head < 6; ++head) {
      for (int64_t phase = 0; phase < 7; ++phase) {
        builder.begin_queries();
        for (int64_t q = phase; q < 700; q += 7) builder.add_query(static_cast<int32_t>(q));
        builder.begin_segments();
        builder.add_rows(0, 100);
        builder.add_rows(100, problem.rows() - 100);
        builder.add_tile(head);
      }
    }
    run_plan(listed.context(pool_), builder.take(), listed.queries(), listed.memory(),
             problem.scale, listed.out());
    const auto a = dense.result(), b = listed.result();
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << head_size;
  }
}

TEST_F(CudaRunner, ManyEmptyListsInARow) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make_bf16(random, {.queries = 500,
                                             .earlier = 100,
                                             .heads = 8,
                                             .kv_heads = 2,
                                             .head_size = 64 << random.below(2)});
  PlanBuilder builder(problem.queries(), problem.memory());
  for (int head = 0; head < 8; ++head) {
    for (int64_t begin = 0; begin < 500; begin += 5) {
      builder.begin_queries();
      builder.add_query_range(begin, begin + 5);
      builder.begin_segments();
      if (begin == 250) builder.add_rows(3, 200);
      builder.add_tile(head);
    }
  }
  const Plan plan = builder.take();
  const Expected expected = testing::reference_of(problem, plan);
  PlacedProblem placed(problem, device_, DType::bf16, DType::bf16);
  run_plan(placed.context(pool_), plan, placed.queries(), placed.memory(), problem.scale,
           placed.out(), {.state = placed.state()});
  EXPECT_LE(error_of(placed.result(), expected.out), allowed(expected));
}

TEST_F(CudaRunner, QueriesOfNoTileAreZero) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make_bf16(random, {.queries = 40, .heads = 2, .head_size = 128});
  PlanBuilder builder(problem.queries(), problem.memory());
  builder.begin_queries();
  builder.add_query_range(0, 30);
  builder.begin_segments();
  builder.add_rows(0, 40);
  builder.add_tile(1);
  PlacedProblem placed(problem, device_, DType::bf16);
  run_plan(placed.context(pool_), builder.take(), placed.queries(), placed.memory(), problem.scale,
           placed.out());
  const auto out = placed.result();
  for (size_t pair = 0; pair < 80; ++pair) {
    const bool mentioned = pair % 2 == 1 && pair / 2 < 30;
    for (size_t c = 0; c < 128; ++c) EXPECT_EQ(out[pair * 128 + c] == 0, !mentioned) << pair;
  }
}

TEST_F(CudaRunner, WindowsOfAFusedProjection) {
  KINORA_FRESH_RANDOM(random);
  const std::vector<int32_t> offsets{0, 1, 64, 64, 129, 300, 303, 1400};
  const int64_t n = 1400, heads = 3;
  for (const int64_t head_size : {64, 72, 80, 128, 33}) {
    const Problem problem = make_bf16(
        random, {.queries = n, .heads = heads, .kv_heads = heads, .head_size = head_size});
    const int64_t row = heads * head_size;
    std::vector<float> fused(static_cast<size_t>(3 * n * row));
    for (int64_t i = 0; i < n; ++i) {
      const auto put = [&](const std::vector<float>& from, int64_t part) {
        std::copy_n(&from[static_cast<size_t>(i * row)], row,
                    &fused[static_cast<size_t>((3 * i + part) * row)]);
      };
      put(problem.query_data, 0);
      put(problem.key_data, 1);
      put(problem.value_data, 2);
    }
    const Tensor qkv = testing::tensor_of(fused, {n, 3 * row}, DType::bf16, device_);
    const auto slice = [&](int64_t part) {
      return ConstTensorView(qkv.view().raw() + part * row * 2, DType::bf16, {n, heads, head_size},
                             {3 * row, head_size, 1}, device_);
    };
    Tensor out = testing::poisoned_tensor(problem.out_shape(), DType::bf16, device_);
    attend_windows(Context(pool_, device_), slice(0), slice(1), slice(2), offsets, problem.scale,
                   out);
    const auto window = [&](int64_t i) {
      return std::upper_bound(offsets.begin(), offsets.end(), i) - offsets.begin();
    };
    const Expected expected = testing::reference(
        problem, [&](int64_t q, int64_t, int64_t k) { return window(q) == window(k); });
    EXPECT_LE(error_of(testing::floats_of(out), expected.out), allowed(expected)) << head_size;
  }
}

// More elements than 32 bits count: the last rows of a long memory, reached in every way.
TEST_F(CudaRunner, OffsetsDoNotOverflow) {
  constexpr int64_t rows = 4'300'000, kv_heads = 4, tail = 300;
  const int64_t bytes = rows * kv_heads * 128 * 2;
  if (gpu_memory(device_).free < 3 * bytes) GTEST_SKIP() << "needs 13 GB of GPU memory";
  KINORA_FRESH_RANDOM(random);
  Problem problem = make_bf16(
      random,
      {.queries = 3, .earlier = tail - 3, .heads = 8, .kv_heads = kv_heads, .head_size = 128});
  problem.scale = 3;  // so that the zero keys before the tail weigh nothing
  const Shape shape{rows, kv_heads, 128};
  Tensor keys = Tensor::zeros(DType::bf16, shape, device_);
  Tensor values = Tensor::zeros(DType::bf16, shape, device_);
  PlacedProblem placed(problem, device_, DType::bf16);
  const auto fill = [&](Tensor& to, const ConstTensorView& from) {
    copy_bytes(to.view().rows(rows - tail, tail).raw(), device_, from.raw(), device_,
               static_cast<size_t>(from.bytes()));
  };
  fill(keys, placed.memory().keys);
  fill(values, placed.memory().values);
  std::vector<int32_t> ordinals(static_cast<size_t>(rows));
  for (size_t i = 0; i < ordinals.size(); ++i) ordinals[i] = static_cast<int32_t>(i);
  const std::vector<int32_t> query_ordinals(ordinals.end() - 3, ordinals.end());
  const QueryView queries{placed.queries().queries, query_ordinals, {}};
  const RowSet memory{keys.view(), values.view(), ordinals, {}};
  const Expected expected = testing::reference(
      problem, [&](int64_t q, int64_t, int64_t row) { return testing::causal(problem, q, row); });
  const auto check = [&](const char* what) {
    EXPECT_LE(error_of(placed.result(), expected.out), 2 * allowed(expected)) << what;
    const Tensor nan = testing::poisoned_tensor(problem.out_shape(), DType::f32, device_);
    copy_bytes(placed.out().raw(), device_, nan.view().raw(), device_,
               static_cast<size_t>(nan.bytes()));
  };
  DenseAttention().attend(placed.context(pool_), 0, queries, memory, problem.scale, placed.out());
  check("dense");
  for (const bool gather : {false, true}) {
    PlanBuilder builder(queries, memory);
    builder.begin_queries();
    builder.add_query_range(0, 3);
    builder.begin_segments();
    if (gather) {
      std::vector<int32_t> last(static_cast<size_t>(tail));
      for (size_t i = 0; i < last.size(); ++i) last[i] = static_cast<int32_t>(rows - tail + i);
      builder.add_gathered(last);
    } else {
      for (int64_t phase = 0; phase < 2; ++phase)
        builder.add_rows(rows - tail + phase, tail / 2, 2);
    }
    for (int head = 0; head < 8; head += 2) builder.add_tile(head, 2);
    run_plan(placed.context(pool_), builder.take(), queries, memory, problem.scale, placed.out());
    check(gather ? "gathered" : "strided");
  }
}

}  // namespace
}  // namespace kinora
