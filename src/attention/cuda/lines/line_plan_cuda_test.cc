// Line patterns planned on the device, against the CPU's plans of the same index, the CPU's probe,
// and attention by definition.
#include "attention/cuda/lines/line_plan_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "attention/cuda/device_plan_test_support.h"
#include "attention/cuda/device_test_support.h"
#include "attention/cuda/lines/line_test_support.h"
#include "attention/cuda/runner_cuda.h"
#include "attention/policies/policy.h"
#include "attention/report.h"
#include "attention/search/grid_search.h"
#include "attention/search/probe.h"

namespace kinora {
namespace {

using cuda_attention::DeviceLines;
using cuda_attention::DevicePlan;
using cuda_attention::FoundGrid;
using cuda_attention::LineHead;
using cuda_attention::LineSpace;
using testing::allowed;
using testing::error_of;
using testing::Expected;
using testing::Kind;
using testing::make_problem;
using testing::PlacedProblem;
using testing::Problem;
using testing::problem_of;

// Heads that all differ; sometimes grids alone, sometimes none.
std::vector<LineHead> random_heads(Random& random, int64_t count) {
  std::vector<LineHead> heads;
  const int64_t grids = random.below(4);
  for (int64_t i = 0; i < count; ++i) {
    const bool grid = grids == 3 || (grids > 0 && random.below(2) == 0);
    heads.push_back(grid ? testing::random_grid_head(random, false)
                         : testing::random_line_head(random));
  }
  return heads;
}

std::vector<int32_t> some_of(const std::vector<int32_t>& lists, size_t head, size_t heads,
                             int32_t count) {
  const size_t capacity = lists.size() / heads;
  const auto begin = lists.begin() + static_cast<int64_t>(head * capacity);
  return {begin, begin + count};
}

// The plan that the CPU makes of what the device has found.
Plan cpu_plan(const Problem& problem, const std::vector<LineHead>& heads,
              const DeviceLines& lines) {
  const std::vector<Region> regions =
      cut_regions(Boundary::none, problem.queries(), problem.memory());
  std::vector<FoundGrid> grids;
  if (lines.grids.defined()) {
    grids = testing::read_back(reinterpret_cast<const FoundGrid*>(lines.grids.view().raw()),
                               std::ssize(heads), lines.grids.device());
  }
  PlanBuilder builder(problem.queries(), problem.memory());
  for (size_t head = 0; head < heads.size(); ++head) {
    LineIndex index;
    if (heads[head].has_grid) {
      const GridLook& look = heads[head].grid;
      const FoundGrid& grid = grids.at(head);
      const std::vector<int32_t> vertical(grid.vertical, grid.vertical + grid.vertical_count);
      index.sink = look.sink;
      index.local = grid.local;
      index.stride = grid.stride;
      if (look.horizontal) index.horizontal = vertical;
      if (look.vertical) index.vertical = vertical;
      if (look.slash) index.slash.assign(grid.slash, grid.slash + grid.slash_count);
    } else if (heads[head].probed) {
      const auto counts = testing::ints_of(lines.column_counts);
      const auto slash_counts = testing::ints_of(lines.slash_counts);
      index.columns = some_of(testing::ints_of(lines.columns), head, heads.size(), counts[head]);
      index.slashes =
          some_of(testing::ints_of(lines.slashes), head, heads.size(), slash_counts[head]);
    } else {
      index.sink = heads[head].sink;
      index.local = heads[head].local;
      index.bottom = heads[head].bottom;
    }
    add_line_tiles(builder, regions.at(0), index, static_cast<int>(head), 1, line_tile);
  }
  return builder.take();
}

bool any_probed(const std::vector<LineHead>& heads) {
  return std::any_of(heads.begin(), heads.end(),
                     [](const LineHead& head) { return head.probed != 0; });
}

// Queries and rows of a problem on the GPU as one space.
LineSpace space_of(const Context& context, PlacedProblem& placed) {
  LineSpace space = cuda_attention::whole_space(placed.queries(), placed.memory());
  cuda_attention::upload(context, space);
  return space;
}

DeviceLines lines_of(const Context& context, PlacedProblem& placed, float scale,
                     const std::vector<LineHead>& heads) {
  return cuda_attention::find_lines(context, space_of(context, placed), placed.queries(),
                                    placed.memory(), scale, heads);
}

using CudaLines = testing::OnGpu;

constexpr std::pair<int64_t, int64_t> sizes[] = {
    {1, 0}, {1, 500}, {63, 0}, {65, 77}, {128, 0}, {129, 31}, {200, 900}, {515, 0}, {300, 1111}};

TEST_F(CudaLines, PlansAreTheCpusAsSets) {
  KINORA_FRESH_RANDOM(random);
  for (const Kind& kind : testing::kernel_kinds) {
    for (const auto& [queries, earlier] : sizes) {
      const Problem problem = problem_of(random, kind, queries, earlier);
      const std::vector<LineHead> heads = random_heads(random, 6);
      PlacedProblem placed(problem, device_, kind.type, kind.type);
      const Context context = placed.context(pool_);
      DeviceLines lines;
      if (any_probed(heads)) lines = lines_of(context, placed, problem.scale, heads);
      const auto plans =
          cuda_attention::line_plans(context, space_of(context, placed), placed.queries(),
                                     placed.memory(), heads, lines, placed.out());
      ASSERT_EQ(plans.size(), 1u);
      const DevicePlan& plan = plans.front();
      const Plan expected = cpu_plan(problem, heads, lines);
      const Plan found = testing::host_plan(plan, 2, device_);
      for (int head = 0; head < 6; ++head) {
        ASSERT_EQ(expand(found, problem.queries(), problem.memory(), head),
                  expand(expected, problem.queries(), problem.memory(), head))
            << queries << ' ' << earlier << " head " << head << " size " << kind.head_size;
      }
      const Tensor counted = cuda_attention::count_pairs(context, plan).to(Device::cpu());
      EXPECT_EQ(*reinterpret_cast<const int64_t*>(counted.view().raw()),
                attended_pairs(expected, problem.queries(), problem.memory()));
      const Expected answer = testing::reference_of(problem, expected);
      for (int round = 0; round < 2; ++round) {  // a plan may be run again
        cuda_attention::run_plan(context, plan, placed.queries(), placed.memory(), problem.scale,
                                 placed.out(), {.state = placed.state()});
        EXPECT_LE(error_of(placed.result(), answer.out), allowed(answer))
            << queries << ' ' << earlier << " size " << kind.head_size;
        placed.out_tensor() = testing::poisoned_tensor(problem.out_shape(), kind.type, device_);
      }
    }
  }
}

TEST_F(CudaLines, FindsWhatTheCpusProbeSees) {
  KINORA_FRESH_RANDOM(random);
  for (const Kind& kind : testing::kernel_kinds) {
    for (const auto& [queries, earlier] : sizes) {
      const Problem problem = problem_of(random, kind, queries, earlier);
      std::vector<LineHead> heads = random_heads(random, 6);
      heads[0] = {.probed = 1, .strongest = {20, 3, 30, 5}};
      PlacedProblem placed(problem, device_, kind.type, kind.type);
      const DeviceLines lines = lines_of(placed.context(pool_), placed, problem.scale, heads);
      const auto columns = testing::ints_of(lines.columns);
      const auto slashes = testing::ints_of(lines.slashes);
      const auto column_counts = testing::ints_of(lines.column_counts);
      const auto slash_counts = testing::ints_of(lines.slash_counts);
      const auto regions = cut_regions(Boundary::none, problem.queries(), problem.memory());
      const Context host(pool_);
      for (size_t head = 0; head < heads.size(); ++head) {
        if (!heads[head].probed) {
          EXPECT_EQ(column_counts[head] + slash_counts[head], 0);
          continue;
        }
        const Probe probe = probe_region(host, problem.queries(), problem.memory(), regions.at(0),
                                         static_cast<int>(head), problem.scale);
        const StrongestLines& wanted = heads[head].strongest;
        testing::expect_strongest(some_of(columns, head, heads.size(), column_counts[head]),
                                  probe.columns, wanted.columns, wanted.forced_columns);
        testing::expect_strongest(some_of(slashes, head, heads.size(), slash_counts[head]),
                                  probe.diagonals, wanted.slashes, wanted.forced_slashes);
      }
    }
  }
}

TEST_F(CudaLines, FindsTheGridsOfTheCpusSearch) {
  KINORA_FRESH_RANDOM(random);
  for (const Kind& kind : testing::kernel_kinds) {
    for (const auto& [queries, earlier] : sizes) {
      const Problem problem = problem_of(random, kind, queries, earlier);
      std::vector<LineHead> heads(6);
      for (LineHead& head : heads) head = testing::random_grid_head(random, false);
      PlacedProblem placed(problem, device_, kind.type, kind.type);
      const DeviceLines lines = lines_of(placed.context(pool_), placed, problem.scale, heads);
      const auto found = testing::read_back(
          reinterpret_cast<const FoundGrid*>(lines.grids.view().raw()), 6, device_);
      const auto regions = cut_regions(Boundary::none, problem.queries(), problem.memory());
      const Region& region = regions.at(0);
      for (size_t head = 0; head < heads.size(); ++head) {
        const Probe probe = probe_region(Context(pool_), problem.queries(), problem.memory(),
                                         region, static_cast<int>(head), problem.scale);
        const GridLook& look = heads[head].grid;
        const GridLines wanted{look.horizontal != 0, look.vertical != 0, look.slash != 0,
                               look.phases};
        const FoundGrid& grid = found[head];
        const GridFit best = look.stride > 0
                                 ? fit_grid(region, probe, look.stride, wanted)
                                 : search_grid(region, probe, least_stride,
                                               largest_stride(region, look.most_stride), wanted);
        ASSERT_GT(grid.stride, 0);
        if (look.stride > 0) {
          ASSERT_EQ(grid.stride, look.stride);
        }
        const int32_t phases = std::min(look.phases, grid.stride);
        ASSERT_EQ(grid.vertical_count, phases);
        ASSERT_EQ(grid.slash_count, look.slash != 0 ? phases : 0);
        EXPECT_EQ(grid.local, look.local > 0 || look.slash != 0 ? look.local : grid.stride);
        // What the found lines hold by the CPU's probe, beyond an even share.
        const auto held = [&](const std::vector<float>& weights, int32_t first,
                              const int32_t* list) {
          double total = 0;
          for (size_t i = 0; i < weights.size(); ++i) {
            const auto phase = static_cast<int32_t>((i + static_cast<size_t>(first)) %
                                                    static_cast<size_t>(grid.stride));
            if (std::find(list, list + phases, phase) != list + phases) {
              total += static_cast<double>(weights[i]);
            }
          }
          return total / static_cast<double>(probe.queries) -
                 static_cast<double>(phases) / grid.stride;
        };
        EXPECT_TRUE(std::is_sorted(grid.vertical, grid.vertical + phases));
        double gain = 0;
        if (look.vertical != 0 || look.slash == 0) {
          gain += held(probe.columns, problem.row_ordinals.front(), grid.vertical);
        }
        if (look.slash != 0) gain += held(probe.diagonals, 0, grid.slash);
        EXPECT_NEAR(gain, best.gain, 1e-3) << queries << ' ' << earlier << " head " << head;
      }
    }
  }
}

TEST_F(CudaLines, APlanOfTheHostRunsAgainAndAgain) {
  KINORA_FRESH_RANDOM(random);
  for (const Kind& kind : testing::kernel_kinds) {
    const Problem problem = problem_of(random, kind, 333, 700);
    const Plan plan = testing::random_plan(random, problem);
    const Expected expected = testing::reference_of(problem, plan);
    PlacedProblem placed(problem, device_, kind.type, kind.type);
    const DevicePlan device_plan = cuda_attention::device_plan(
        placed.context(pool_), plan, placed.queries(), placed.memory(), placed.out());
    for (int round = 0; round < 3; ++round) {
      placed.out_tensor() = testing::poisoned_tensor(problem.out_shape(), kind.type, device_);
      cuda_attention::run_plan(placed.context(pool_), device_plan, placed.queries(),
                               placed.memory(), problem.scale, placed.out());
      EXPECT_LE(error_of(placed.result(), expected.out), allowed(expected)) << kind.head_size;
    }
  }
}

TEST_F(CudaLines, PoliciesAttendAsOnTheCpu) {
  KINORA_FRESH_RANDOM(random);
  AttentionOptions options;
  options.sparse.dense_below = 0;
  options.frame_stride = 24;
  for (const char* name :
       {"a-shape:sink=40,local=2000", "tri-shape:sink=40,local=1000,bottom=2000", "sf-fixed",
        "sf-strided", "grid:stride=24", "grid:stride=24,phases=3,lines=hv", "grid:stride=7,lines=s",
        "grid:stride=40,phases=2,lines=vs", "vertical-slash:verticals=400,slashes=300,boundary=key",
        "a-shape:last=0+delta=7"}) {
    const bool plain = random.below(2) == 0;
    Problem problem = make_problem(random, {.queries = 400,
                                            .earlier = 700,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .head_size = 128,
                                            .dtype = DType::bf16,
                                            .gaps = plain ? 0 : 0.1});
    testing::narrow_queries(problem);
    testing::mix_modalities(random, problem, 2, 90);
    const auto here = make_attention(name, options), there = make_attention(name, options);
    const Context host(pool_);
    Tensor expected(DType::f32, problem.out_shape());
    here->attend(host, 0, problem.queries(), problem.memory(), problem.scale, expected);
    PlacedProblem placed(problem, device_, DType::f32, DType::f32);
    there->attend(placed.context(pool_), 0, placed.queries(), placed.memory(), problem.scale,
                  placed.out());
    const std::vector<float> values(expected.data<float>(),
                                    expected.data<float>() + expected.elements());
    EXPECT_LE(testing::relative_error(std::span<const float>(placed.result()),
                                      std::span<const float>(values)),
              8e-3)
        << name << (plain ? "" : " with gaps");
    EXPECT_EQ(there->report()->pairs, here->report()->pairs) << name;
    EXPECT_EQ(there->report()->dense_calls, 0);
    // Another layer, then other rows: plans that were kept must not be taken for others.
    for (const int64_t earlier : {700, 701}) {
      Problem other = make_problem(random, {.queries = 400,
                                            .earlier = earlier,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .head_size = 128,
                                            .dtype = DType::bf16,
                                            .gaps = 0.1});
      testing::narrow_queries(other);
      testing::mix_modalities(random, other, 2, 90);
      if (earlier == 700) {
        other.row_ordinals = problem.row_ordinals;
        other.query_ordinals = problem.query_ordinals;
        other.row_modalities = problem.row_modalities;
        other.query_modalities = problem.query_modalities;
      }
      PlacedProblem next(other, device_, DType::f32, DType::f32);
      here->attend(host, 1, other.queries(), other.memory(), other.scale, expected);
      there->attend(next.context(pool_), 1, next.queries(), next.memory(), other.scale, next.out());
      const std::vector<float> wanted(expected.data<float>(),
                                      expected.data<float>() + expected.elements());
      EXPECT_LE(testing::relative_error(std::span<const float>(next.result()),
                                        std::span<const float>(wanted)),
                8e-3)
          << name << " then " << earlier;
    }
    EXPECT_GT(there->report()->run_seconds, 0);
  }
}

}  // namespace
}  // namespace kinora
