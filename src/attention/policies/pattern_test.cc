#include "attention/policies/pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "attention/search/grid_search.h"
#include "attention/test_support.h"
#include "base/error.h"

namespace kinora {
namespace {

using testing::make_problem;
using testing::Problem;

// Sums of one head by the definition.
void check_probe(const Problem& problem, const Region& region, const ProbeRequest& request,
                 const Probe& probe) {
  const int64_t size = problem.shape.head_size, heads = problem.shape.heads;
  const int64_t kv_heads = problem.shape.kv_heads, kv = request.head / (heads / kv_heads);
  std::vector<double> columns(region.rows.size()), diagonals(probe.diagonals.size());
  int64_t taken = 0;
  std::map<Modality, int64_t> seen;
  for (size_t i = region.queries.size(); i > 0; --i) {
    const int32_t query = region.queries[i - 1];
    const Modality modality = problem.query_modalities[static_cast<size_t>(query)];
    if ((request.of == ProbeOf::region ? taken : seen[modality]) >= request.count) continue;
    const int64_t c = region.query_coordinates[i - 1];
    std::vector<double> weights;
    for (const int32_t row : region.rows) {
      if (!testing::causal(problem, query, row)) break;
      double score = 0;
      for (int64_t at = 0; at < size; ++at) {
        score += double{problem.query_data[static_cast<size_t>(
                     (query * heads + request.head) * size + at)]} *
                 double{problem.key_data[static_cast<size_t>((row * kv_heads + kv) * size + at)]};
      }
      weights.push_back(std::exp(score * double{problem.scale}));
    }
    if (weights.empty()) continue;
    ++taken;
    ++seen[modality];
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t k = 0; k < weights.size(); ++k) {
      columns[k] += weights[k] / sum;
      diagonals[static_cast<size_t>(c - region.row_coordinates[k])] += weights[k] / sum;
    }
  }
  EXPECT_EQ(probe.queries, taken);
  EXPECT_LT(testing::relative_error(std::span<const float>(probe.columns),
                                    std::span<const double>(columns)),
            1e-5);
  EXPECT_LT(testing::relative_error(std::span<const float>(probe.diagonals),
                                    std::span<const double>(diagonals)),
            1e-5);
}

// Heads and regions that are looked at together, in blocks of rows and lanes of queries that are
// not filled, with neighbours that are adjacent and not.
TEST(Probe, SumsExactAttentionOfTheLastQueries) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool one(1), three(3);
  for (const DType dtype : {DType::f32, DType::bf16, DType::u8}) {
    for (const int64_t queries : {1, 63, 90, 129}) {
      for (const int64_t earlier : {0, 50, 3071}) {
        if (earlier > 1000 && queries != 90) continue;
        Problem problem = make_problem(random, {.queries = queries,
                                                .earlier = earlier,
                                                .heads = 6,
                                                .kv_heads = 2,
                                                .head_size = 1 + random.below(20),
                                                .dtype = dtype,
                                                .gaps = random.below(2) * 0.3});
        testing::mix_modalities(random, problem, 1 + static_cast<int>(random.below(3)), 40);
        const int64_t count = 1 + random.below(70);
        std::vector<ProbeRequest> requests;
        std::vector<std::vector<Region>> regions;
        for (const Boundary boundary : {Boundary::none, Boundary::query, Boundary::both}) {
          regions.push_back(cut_regions(boundary, problem.queries(), problem.memory()));
        }
        for (const auto& cut : regions) {
          for (const Region& region : cut) {
            const ProbeOf of = random.below(2) ? ProbeOf::region : ProbeOf::each_modality;
            for (const int head : {0, 2, 3}) requests.push_back({&region, head, of, count});
          }
        }
        const auto probes = probe_regions(Context(three), problem.queries(), problem.memory(),
                                          problem.scale, requests);
        const auto again = probe_regions(Context(one), problem.queries(), problem.memory(),
                                         problem.scale, requests);
        ASSERT_EQ(probes.size(), requests.size());
        for (size_t i = 0; i < probes.size(); ++i) {
          check_probe(problem, *requests[i].region, requests[i], probes[i]);
          EXPECT_EQ(probes[i].columns, again[i].columns);
          EXPECT_EQ(probes[i].diagonals, again[i].diagonals);
        }
      }
    }
  }
}

// A probe as a grid head would give it: even noise, and lines of known stride and phase.
struct Planted {
  Problem problem;
  std::vector<Region> regions;
  Probe probe;
};

Planted plant(Random& random, int64_t rows, int32_t stride, int32_t vertical, int32_t slash,
              double share) {
  Planted planted;
  planted.problem = make_problem(random, {.queries = rows, .head_size = 1});
  planted.regions =
      cut_regions(Boundary::none, planted.problem.queries(), planted.problem.memory());
  planted.probe.queries = 64;
  const auto line = [&](int32_t phase) {
    std::vector<float> weights(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) {
      const double even = 64.0 * (1 - share) / static_cast<double>(rows);
      const double peak =
          i % stride == phase ? 64.0 * share * stride / static_cast<double>(rows) : 0;
      weights[static_cast<size_t>(i)] =
          static_cast<float>((even + peak) * random.uniform(0.7, 1.3));
    }
    return weights;
  };
  planted.probe.columns = line(vertical);
  planted.probe.diagonals = line(slash);
  return planted;
}

TEST(GridSearch, FindsStrideAndPhase) {
  KINORA_FRESH_RANDOM(random);
  for (const int32_t stride : {9, 64, 98, 182, 400, 1021}) {
    const auto vertical = static_cast<int32_t>(random.below(stride));
    const auto slash = static_cast<int32_t>(random.below(stride));
    const Planted planted = plant(random, 9001, stride, vertical, slash, 0.4);
    const GridFit fit =
        search_grid(planted.regions[0], planted.probe, least_stride, 1024, {true, true, true});
    EXPECT_EQ(fit.stride, stride);
    EXPECT_EQ(fit.vertical, std::vector{vertical});
    EXPECT_EQ(fit.slash, std::vector{slash});
    // What the planted lines hold beyond an even share; the bound is that of sums of 1,000 floats.
    double gain = -2.0 / stride;
    for (size_t i = 0; i < planted.probe.columns.size(); ++i) {
      const auto phase = static_cast<int32_t>(i) % stride;
      if (phase == vertical) gain += double{planted.probe.columns[i]} / 64;
      if (phase == slash) gain += double{planted.probe.diagonals[i]} / 64;
    }
    EXPECT_NEAR(fit.gain, gain, 1e-4);
  }
}

TEST(GridSearch, FoldEqualsTheDefinitionAcrossGaps) {
  KINORA_FRESH_RANDOM(random);
  for (const double gaps : {0.0, 0.3}) {
    const Problem problem =
        make_problem(random, {.queries = 50, .earlier = 500, .head_size = 1, .gaps = gaps});
    const Region region = cut_regions(Boundary::none, problem.queries(), problem.memory()).front();
    Probe probe;
    probe.queries = 1;
    probe.columns = testing::random_floats(random, problem.rows());
    probe.diagonals = testing::random_floats(random, region.query_coordinates.back() + 1);
    for (const int32_t stride : {8, 13, 64, 100}) {
      const auto phases = static_cast<int32_t>(1 + random.below(stride + 3));
      const GridFit fit = fit_grid(region, probe, stride, {false, true, true, phases});
      std::vector<double> columns(static_cast<size_t>(stride)), slashes(columns.size());
      for (size_t i = 0; i < probe.columns.size(); ++i) {
        columns[static_cast<size_t>(region.row_coordinates[i] % stride)] +=
            double{probe.columns[i]};
      }
      for (size_t i = 0; i < probe.diagonals.size(); ++i) {
        slashes[i % static_cast<size_t>(stride)] += double{probe.diagonals[i]};
      }
      const auto strongest = [&](const std::vector<double>& sums) {
        std::vector<int32_t> order(sums.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return sums[static_cast<size_t>(a)] > sums[static_cast<size_t>(b)];
        });
        order.resize(static_cast<size_t>(std::min(phases, stride)));
        std::sort(order.begin(), order.end());
        return order;
      };
      EXPECT_EQ(fit.vertical, strongest(columns));
      EXPECT_EQ(fit.slash, strongest(slashes));
    }
  }
}

TEST(Pattern, VerticalSlashKeepsTheStrongestAndTheForced) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 30; ++round) {
    const int64_t rows = 1 + random.below(400);
    const Problem problem = make_problem(random, {.queries = rows, .head_size = 1});
    const Region region = cut_regions(Boundary::none, problem.queries(), problem.memory()).front();
    Probe probe;
    probe.queries = 64;
    for (int64_t i = 0; i < rows; ++i) {  // few distinct values, so that ties abound
      probe.columns.push_back(static_cast<float>(random.below(5)));
      const bool near = random.below(2) == 0;  // far from each other, or too close for the eye
      probe.diagonals.push_back(near ? 1 + 0x1p-20f * static_cast<float>(random.below(9))
                                     : static_cast<float>(std::exp(random.uniform(-30.0, 3.0))));
    }
    const auto verticals = static_cast<int32_t>(random.below(450));
    const auto slashes = static_cast<int32_t>(random.below(450));
    const PatternSpec spec = parse_pattern("vertical-slash:verticals=" + std::to_string(verticals) +
                                           ",slashes=" + std::to_string(slashes));
    const LineIndex index = resolve(spec, region, probe);
    const auto check_list = [&](std::vector<int32_t> list, std::vector<float> weights,
                                int32_t count, int32_t forced) {
      for (int32_t i = 0; i < std::min<int64_t>(forced, rows); ++i) {
        weights[static_cast<size_t>(i)] = 100;
      }
      std::vector<int32_t> order(weights.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return weights[static_cast<size_t>(a)] > weights[static_cast<size_t>(b)];
      });
      const int64_t kept = std::clamp<int64_t>(count, std::min<int64_t>(forced, rows), rows);
      order.resize(static_cast<size_t>(kept));
      std::sort(order.begin(), order.end());
      EXPECT_EQ(list, order);
    };
    check_list(index.columns, probe.columns, verticals, 30);   // the first are always read,
    check_list(index.slashes, probe.diagonals, slashes, 100);  // and the nearest
  }
}

TEST(Pattern, ResolvesTheStaticOnes) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make_problem(random, {.queries = 300, .head_size = 1});
  const Region region = cut_regions(Boundary::none, problem.queries(), problem.memory()).front();
  EXPECT_TRUE(resolve({}, region, {}).everything);
  const LineIndex tri = resolve(parse_pattern("tri-shape:sink=3,local=50,bottom=9"), region, {});
  EXPECT_EQ(tri.sink, 3);
  EXPECT_EQ(tri.local, 50);
  EXPECT_EQ(tri.bottom, 9);
  EXPECT_EQ(resolve(parse_pattern("a-shape"), region, {}).bottom, 0);
  EXPECT_THROW(parse_pattern("a-shape:bottom=9"), Error);
  const LineIndex fixed = resolve(parse_pattern("sf-fixed:stride=64"), region, {});
  EXPECT_EQ(fixed.segment, 64);
  EXPECT_EQ(fixed.vertical, std::vector{0});
  EXPECT_EQ(parse_pattern("sf-fixed", 98), parse_pattern("sf-fixed:stride=98", 64));
  const LineIndex strided = resolve(parse_pattern("sf-strided:stride=64"), region, {});
  EXPECT_EQ(strided.stride, 64);
  EXPECT_EQ(strided.slash, std::vector{0});
  EXPECT_EQ(strided.local, 64);
  EXPECT_EQ(fixed.local, 0);
  EXPECT_EQ(resolve(parse_pattern("sf-fixed:stride=64,local=500"), region, {}).local, 500);
  EXPECT_EQ(resolve(parse_pattern("sf-strided:stride=64,local=500"), region, {}).local, 500);
  EXPECT_EQ(resolve(parse_pattern("sf-strided:stride=64,local=5"), region, {}).local, 64);
}

TEST(Pattern, GridsTakeAWindowAndSeveralPhases) {
  KINORA_FRESH_RANDOM(random);
  const Planted planted = plant(random, 4001, 50, 7, 20, 0.4);
  const Region& region = planted.regions[0];
  const auto index = [&](std::string_view text) {
    return resolve(parse_pattern(text), region, planted.probe);
  };
  EXPECT_EQ(index("grid:lines=vs").local, 0);  // with slashes only where it is asked for
  EXPECT_EQ(index("grid:lines=vs,local=300").local, 300);
  EXPECT_EQ(index("grid:lines=hv").local, 50);
  EXPECT_EQ(index("grid:lines=hv,local=300").local, 300);
  const LineIndex grid = index("grid:stride=50,phases=3");
  EXPECT_EQ(grid.vertical.size(), 3u);
  EXPECT_EQ(grid.slash.size(), 3u);
  EXPECT_EQ(grid.horizontal, grid.vertical);
  EXPECT_TRUE(std::find(grid.vertical.begin(), grid.vertical.end(), 7) != grid.vertical.end());
  EXPECT_TRUE(std::find(grid.slash.begin(), grid.slash.end(), 20) != grid.slash.end());
  EXPECT_EQ(index("grid:stride=50,phases=80").slash.size(), 50u);  // all of them
}

TEST(Pattern, AGridUsesABudgetAsAWindowAsLinesOrAsBoth) {
  const auto shapes = shapes_of(parse_pattern("grid:sink=128,stride=98,lines=vs"));
  ASSERT_EQ(shapes.size(), 3u);
  EXPECT_EQ(shapes[0], parse_pattern("grid:sink=128,stride=98,lines=vs,local=4096"));
  EXPECT_EQ(shapes[1], parse_pattern("grid:sink=128,stride=98,lines=vs,phases=2"));
  EXPECT_EQ(shapes[2], parse_pattern("grid:sink=128,stride=98,lines=vs,local=4096,phases=2"));
  PatternSpec lines = shapes[1];
  EXPECT_TRUE(resize(lines, 3));
  EXPECT_EQ(lines, parse_pattern("grid:sink=128,stride=98,lines=vs,phases=6"));
  EXPECT_TRUE(resize(lines, 0.25));
  EXPECT_EQ(lines, parse_pattern("grid:sink=128,stride=98,lines=vs,phases=1"));
  EXPECT_FALSE(resize(lines, 0.25));
  PatternSpec both = shapes[2];
  EXPECT_TRUE(resize(both, 0.5));
  EXPECT_EQ(both, parse_pattern("grid:sink=128,stride=98,lines=vs,local=2048,phases=1"));
  // The length of the input changes the window and not the lines.
  EXPECT_EQ(scaled(shapes[2], nominal_length / 4),
            parse_pattern("grid:sink=32,stride=98,lines=vs,local=1024,phases=2"));
}

TEST(Pattern, SizesShrinkWithShortInputsOnly) {
  const PatternSpec spec = parse_pattern("grid:sink=1,local=4096,stride=64");
  EXPECT_EQ(scaled(spec, nominal_length), spec);
  EXPECT_EQ(scaled(spec, 1'000'000), spec);
  EXPECT_EQ(scaled(spec, nominal_length / 2), parse_pattern("grid:sink=1,local=2048,stride=64"));
  EXPECT_EQ(scaled(spec, 1), parse_pattern("grid:sink=1,local=1,stride=64"));
  EXPECT_EQ(scaled(parse_pattern("tri-shape"), nominal_length / 4),
            parse_pattern("tri-shape:sink=32,local=1024,bottom=32"));
}

TEST(Pattern, RefusesNonsense) {
  EXPECT_THROW(parse_pattern("grid:lines="), Error);
  EXPECT_THROW(parse_pattern("grid:stride=-1,lines=s"), Error);
  EXPECT_THROW(parse_pattern("grid:max-stride=2000,lines=s"), Error);
  EXPECT_THROW(parse_pattern("sf-fixed:stride=0"), Error);
  EXPECT_THROW(parse_pattern("a-shape:local=-5"), Error);
  EXPECT_THROW(parse_pattern("dense:local=5"), Error);
  EXPECT_THROW(parse_pattern("zigzag"), Error);
  EXPECT_THROW(parse_pattern("grid:phases=0"), Error);
  // As a table might have them: (sink, local, stride, max_stride, horizontal, vertical, slash,
  // phases).
  EXPECT_THROW(make_pattern(find_pattern("grid"), {0, 0, 0, 1024, 0, 0, 0, 1}), Error);
  EXPECT_THROW(make_pattern(find_pattern("grid"), {0, 0, 0, 2000, 0, 0, 1, 1}), Error);
  EXPECT_THROW(make_pattern(find_pattern("grid"), {0, 0, 0, 1024, 0, 0, 1, 0}), Error);
  EXPECT_THROW(make_pattern(find_pattern("sf-fixed"), {0, 0}), Error);
  EXPECT_EQ(pattern_kinds().size(), 7u);
  for (const PatternKind* kind : pattern_kinds()) {
    EXPECT_EQ(parse_pattern(kind->name).kind, kind);
    EXPECT_EQ(parse_pattern(kind->name).sizes.size(), kind->sizes.size());
    EXPECT_TRUE(to_string(parse_pattern(kind->name)).starts_with(kind->name));
  }
}

}  // namespace
}  // namespace kinora
