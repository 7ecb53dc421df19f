// Block-sparse attention planned on the device: plans of chosen blocks, MOMO's choice and its
// result, against the CPU's.
#include "attention/cuda/block_plan_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "attention/cuda/device_plan_test_support.h"
#include "attention/cuda/device_test_support.h"
#include "attention/cuda/runner_cuda.h"
#include "attention/report.h"

namespace kinora {
namespace {

using cuda_attention::DeviceBlocks;
using cuda_attention::DevicePlan;
using testing::allowed;
using testing::error_of;
using testing::Expected;
using testing::Kind;
using testing::make_problem;
using testing::PlacedProblem;
using testing::Problem;

Problem gappy_problem(Random& random, const Kind& kind, int64_t queries, int64_t earlier) {
  const double gaps = random.below(2) == 0 ? 0 : 0.2;
  Problem problem = make_problem(random, {.queries = queries,
                                          .earlier = earlier,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_size = kind.head_size,
                                          .dtype = kind.type,
                                          .gaps = gaps});
  testing::narrow_queries(problem);
  return problem;
}

using CudaBlocks = testing::OnGpu;

TEST_F(CudaBlocks, PlansAreTheCpusAsSets) {
  KINORA_FRESH_RANDOM(random);
  const std::pair<int64_t, int64_t> sizes[] = {{1, 0},   {1, 700},    {127, 1},  {128, 900},
                                               {129, 0}, {300, 1000}, {777, 333}};
  for (const Kind& kind : testing::kernel_kinds) {
    for (const auto& [queries, earlier] : sizes) {
      const Problem problem = gappy_problem(random, kind, queries, earlier);
      BlockLayout layout;
      layout.block = random.below(2) == 0 ? 32 : 64;
      layout.tile = 1 + random.below(200);
      layout.sink = random.below(150);
      layout.window = random.below(300);
      const int64_t tiles = layout.tiles(queries), most = 40;
      BlockChoice choice(static_cast<size_t>(4 * tiles));
      Tensor blocks = Tensor::zeros(DType::i32, {4, tiles, most});
      Tensor counts = Tensor::zeros(DType::i32, {4, tiles});
      const int64_t first = layout.sink_end(problem.rows()) / layout.block;
      for (int64_t list = 0; list < 4 * tiles; ++list) {
        const int64_t end =
            layout.window_begin(problem.queries(), problem.memory(), list % tiles) / layout.block;
        std::vector<int32_t>& own = choice[static_cast<size_t>(list)];
        const int64_t odds = random.below(4);  // some lists stay empty
        for (int64_t block = first; block < end; ++block) {
          if (random.below(4) < odds && static_cast<int64_t>(own.size()) < most) {
            own.push_back(static_cast<int32_t>(block));
          }
        }
        std::copy(own.begin(), own.end(), blocks.data<int32_t>() + list * most);
        counts.data<int32_t>()[list] = static_cast<int32_t>(own.size());
      }
      PlacedProblem placed(problem, device_, kind.type, kind.type);
      const Context context = placed.context(pool_);
      const DevicePlan plan =
          cuda_attention::block_plan(context, placed.queries(), placed.memory(), layout,
                                     {blocks.to(device_), counts.to(device_)}, placed.out());
      const Plan expected = block_plan(problem.queries(), problem.memory(), layout, choice);
      const Plan found = testing::host_plan(plan, 2, device_);
      for (int head = 0; head < 4; ++head) {
        ASSERT_EQ(expand(found, problem.queries(), problem.memory(), head),
                  expand(expected, problem.queries(), problem.memory(), head))
            << queries << ' ' << earlier << " head " << head << " tile " << layout.tile;
      }
      const Tensor counted = cuda_attention::count_pairs(context, plan).to(Device::cpu());
      EXPECT_EQ(*reinterpret_cast<const int64_t*>(counted.view().raw()),
                attended_pairs(expected, problem.queries(), problem.memory()));
      cuda_attention::run_plan(context, plan, placed.queries(), placed.memory(), problem.scale,
                               placed.out());
      const Expected answer = testing::reference_of(problem, expected);
      EXPECT_LE(error_of(placed.result(), answer.out), allowed(answer))
          << queries << ' ' << earlier << " size " << kind.head_size << " tile " << layout.tile;
    }
  }
}

TEST_F(CudaBlocks, MomoChoosesAndAttendsAsOnTheCpu) {
  KINORA_FRESH_RANDOM(random);
  SparseOptions sparse;
  sparse.dense_below = 0;
  sparse.dense_last = 0;
  for (const Kind& kind : testing::kernel_kinds) {
    for (const int64_t block : {32, 64}) {
      const Problem problem = gappy_problem(random, kind, 500 + random.below(200), 1400);
      MomoOptions options;
      options.layout = {.tile = 128, .block = block, .sink = 40, .window = 100};
      options.query_stride = 5 + random.below(14);
      options.k = 5 + random.below(9);
      options.k_exact = options.k;
      options.sparse_keys = 6000;  // scaled by the length
      options.rank = random.below(2) == 0 ? BlockRank::mean : BlockRank::mass;
      options.trim = random.below(4) > 0;
      MomoAttention here(options, sparse), there(options, sparse);
      const Context host(pool_);
      const Plan expected =
          here.plans(host, 0, problem.queries(), problem.memory(), problem.scale).at(0).plan;

      PlacedProblem placed(problem, device_, kind.type, kind.type);
      const Context context = placed.context(pool_);
      const SampledQueries sampled(context, placed.queries(), options.query_stride);
      Tensor exact(kind.type, sampled.view().queries.shape(), device_);
      ASSERT_TRUE(cuda_attention::can_choose(options));
      const DeviceBlocks chosen = cuda_attention::choose_blocks(
          context, placed.queries(), sampled, placed.memory(), problem.scale, options,
          scaled_keys(options.sparse_keys, problem.rows()), exact);
      const Plan found =
          testing::host_plan(cuda_attention::block_plan(context, placed.queries(), placed.memory(),
                                                        options.layout, chosen, placed.out()),
                             2, device_);
      // Scores are rounded differently, so that one of two nearly equal blocks may take the place
      // of the other.
      int64_t read = 0, differ = 0;
      for (int head = 0; head < 4; ++head) {
        const auto a = expand(found, problem.queries(), problem.memory(), head);
        const auto b = expand(expected, problem.queries(), problem.memory(), head);
        for (size_t i = 0; i < a.size(); ++i) {
          ASSERT_LE(a[i], 1);
          read += b[i];
          differ += a[i] != b[i] ? 1 : 0;
        }
      }
      EXPECT_LE(differ, read / 200) << kind.head_size << " block " << block;

      Tensor wanted(DType::f32, problem.out_shape());
      here.attend(host, 0, problem.queries(), problem.memory(), problem.scale, wanted);
      there.attend(context, 0, placed.queries(), placed.memory(), problem.scale, placed.out());
      const std::vector<float> values(wanted.data<float>(),
                                      wanted.data<float>() + wanted.elements());
      EXPECT_LE(testing::relative_error(std::span<const float>(placed.result()),
                                        std::span<const float>(values)),
                kind.type == DType::bf16 ? 3e-2 : 1e-2)
          << kind.head_size << " block " << block;
      EXPECT_EQ(there.report()->parts.at("momo measure").pairs,
                here.report()->parts.at("momo measure").pairs);
    }
  }
}

// How many pairs only one of two plans of MOMO's choice reads, made here and on the device.
int64_t compare_choice(const ThreadPool& pool, Device device, const Problem& problem,
                       const MomoOptions& options) {
  MomoAttention here(options, {.dense_below = 0, .dense_last = 0});
  const Plan expected =
      here.plans(Context(pool), 0, problem.queries(), problem.memory(), problem.scale).at(0).plan;
  PlacedProblem placed(problem, device, problem.shape.dtype, problem.shape.dtype);
  const Context context = placed.context(pool);
  const SampledQueries sampled(context, placed.queries(), options.query_stride);
  Tensor exact(problem.shape.dtype, sampled.view().queries.shape(), device);
  const DeviceBlocks chosen = cuda_attention::choose_blocks(
      context, placed.queries(), sampled, placed.memory(), problem.scale, options,
      scaled_keys(options.sparse_keys, problem.rows()), exact);
  const Plan found =
      testing::host_plan(cuda_attention::block_plan(context, placed.queries(), placed.memory(),
                                                    options.layout, chosen, placed.out()),
                         static_cast<int32_t>(problem.shape.kv_heads), device);
  int64_t differ = 0;
  for (int head = 0; head < problem.shape.heads; ++head) {
    const auto a = expand(found, problem.queries(), problem.memory(), head);
    const auto b = expand(expected, problem.queries(), problem.memory(), head);
    for (size_t i = 0; i < a.size(); ++i) {
      differ += a[i] != b[i] ? 1 : 0;
    }
  }
  return differ;
}

// All queries look along one direction, in which the keys of a block lie equally far. Blocks of
// different distances are much further apart than rounding moves their scores.
void place_blocks(Problem& problem, const std::function<double(int64_t block)>& distance) {
  const int64_t d = problem.shape.head_size;
  std::vector<float> direction(problem.query_data.begin(), problem.query_data.begin() + d);
  double square = 0;
  for (const float x : direction) square += double{x} * double{x};
  for (size_t i = 0; i < problem.query_data.size(); ++i) {
    problem.query_data[i] = direction[i % static_cast<size_t>(d)];
  }
  const auto row_size = static_cast<size_t>(problem.shape.kv_heads * d);
  for (size_t i = 0; i < problem.key_data.size(); ++i) {
    const double far = distance(static_cast<int64_t>(i / row_size / 32));
    const double key =
        far / (square * double{problem.scale}) * double{direction[i % static_cast<size_t>(d)]};
    const bf16 rounded = bf16::from_float(static_cast<float>(key));
    problem.key_data[i] = rounded.to_float();
    std::memcpy(&problem.key_narrow[i], &rounded, sizeof(rounded));
  }
}

TEST_F(CudaBlocks, MomoChoosesAmongManyBlocks) {
  KINORA_FRESH_RANDOM(random);
  Problem problem = make_problem(random, {.queries = 140,
                                          .earlier = 40'000 + random.below(1000),
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_size = 64,
                                          .dtype = DType::bf16});
  testing::narrow_queries(problem);
  std::vector<double> distances(static_cast<size_t>(problem.rows() / 32 + 1));
  for (size_t i = 0; i < distances.size(); ++i) {
    distances[i] = 0.02 * static_cast<double>(i);
    std::swap(distances[i],
              distances[static_cast<size_t>(random.below(static_cast<int64_t>(i) + 1))]);
  }
  Problem equal = problem;
  place_blocks(problem, [&](int64_t block) { return distances[static_cast<size_t>(block)]; });
  place_blocks(equal, [](int64_t) { return 0.0; });
  for (const int64_t k : {1, 64, 300}) {
    MomoOptions options;
    options.k = options.k_exact = k;
    ASSERT_TRUE(cuda_attention::can_choose(options));
    EXPECT_EQ(compare_choice(pool_, device_, problem, options), 0) << k << " blocks";
    // Of equal scores the first ones count.
    EXPECT_EQ(compare_choice(pool_, device_, equal, options), 0) << k << " of equal blocks";
  }
}

TEST_F(CudaBlocks, MomoPlansOnTheCpuWhatADeviceCannotChoose) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = gappy_problem(random, testing::kernel_kinds[0], 500, 1400);
  MomoOptions options;
  options.layout = {.tile = 128, .block = 32, .sink = 40, .window = 100};
  options.top_k = TopKMethod::threshold;
  options.k = options.k_exact = 12;
  SparseOptions sparse;
  sparse.dense_below = 0;
  sparse.dense_last = 0;
  ASSERT_FALSE(cuda_attention::can_choose(options));
  MomoAttention here(options, sparse), there(options, sparse);
  Tensor wanted(DType::f32, problem.out_shape());
  here.attend(Context(pool_), 0, problem.queries(), problem.memory(), problem.scale, wanted);
  PlacedProblem placed(problem, device_);
  there.attend(placed.context(pool_), 0, placed.queries(), placed.memory(), problem.scale,
               placed.out());
  const std::vector<float> values(wanted.data<float>(), wanted.data<float>() + wanted.elements());
  EXPECT_LE(testing::relative_error(std::span<const float>(placed.result()),
                                    std::span<const float>(values)),
            8e-3);
}

}  // namespace
}  // namespace kinora
