#include "attention/plan/line_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "attention/cuda/device_test_support.h"
#include "attention/policies/dense.h"
#include "attention/runner.h"
#include "attention/test_support.h"
#include "base/error.h"

namespace kinora {
namespace {

using testing::make_problem;
using testing::Problem;

constexpr Boundary boundaries[] = {Boundary::none, Boundary::key, Boundary::query, Boundary::both};

LineIndex random_index(Random& random, int64_t rows) {
  LineIndex index;
  const auto size = [&] { return static_cast<int32_t>(random.below(rows / 3 + 2)); };
  const auto sorted = [&](int64_t count) {
    std::vector<int32_t> values;
    for (int32_t i = 0; i < rows; ++i) {
      if (random.below(rows) < count) values.push_back(i);
    }
    return values;
  };
  if (random.below(2)) index.sink = size();
  if (random.below(3) == 0) index.bottom = size();
  if (random.below(2)) index.columns = sorted(10);
  const int64_t kind = random.below(3);
  if (kind == 0) {
    index.stride = static_cast<int32_t>(1 + random.below(40));
    const auto phases = [&] {
      std::vector<int32_t> some;
      const int64_t odds = 1 + random.below(2 * index.stride);
      for (int32_t phase = 0; phase < index.stride; ++phase) {
        if (random.below(odds) == 0) some.push_back(phase);
      }
      return random.below(2) ? some : std::vector<int32_t>();
    };
    index.vertical = phases();
    index.slash = phases();
    index.horizontal = phases();
    if (random.below(3) == 0) index.local = size();
    if (random.below(4) == 0) index.segment = 1 + size();
  } else {
    if (kind == 1) index.slashes = sorted(8);
    if (random.below(2)) index.local = size();
    if (random.below(3) == 0) index.segment = 1 + size();
  }
  return index;
}

bool contains(const std::vector<int32_t>& list, int64_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Coordinates by their definition (region.h), from ordinals and modalities alone.
class Definition {
 public:
  Definition(const Problem& problem, Boundary boundary)
      : problem_(problem),
        by_key_(boundary == Boundary::key || boundary == Boundary::both),
        by_query_(boundary == Boundary::query || boundary == Boundary::both),
        by_place_(boundary == Boundary::both) {
    for (auto& shifts : shift_) shifts.fill(-1'000'000);
    for (int64_t q = 0; by_place_ && q < problem.shape.queries; ++q) {
      for (size_t kind = 0; kind < 4; ++kind) {
        const int64_t seen = reach(q, static_cast<Modality>(kind));
        int64_t& shift = shift_[static_cast<size_t>(modality(q))][kind];
        if (seen >= 0) shift = std::max(shift, seen - own_place(q));
      }
    }
  }

  int64_t key(int64_t row) const {
    return by_place_ ? before(row_modality(row), row_ordinal(row)) : row_ordinal(row);
  }
  int64_t place(int64_t row) const {  // among the keys of its region
    return by_key_ ? before(row_modality(row), row_ordinal(row)) : row;
  }
  int64_t reach(int64_t query, Modality key) const {
    return by_place_ ? before(key, ordinal(query) + 1) - 1 : ordinal(query);
  }
  int64_t query(int64_t query, Modality key) const {
    if (!by_place_) return ordinal(query);
    return own_place(query) +
           shift_[static_cast<size_t>(modality(query))][static_cast<size_t>(key)];
  }
  int64_t later_queries(int64_t query) const {  // of its region
    int64_t count = 0;
    for (int64_t q = query + 1; q < problem_.shape.queries; ++q) {
      count += !by_query_ || modality(q) == modality(query);
    }
    return count;
  }

  Modality modality(int64_t query) const {
    return problem_.query_modalities[static_cast<size_t>(query)];
  }
  Modality row_modality(int64_t row) const {
    return problem_.row_modalities[static_cast<size_t>(row)];
  }

 private:
  int64_t ordinal(int64_t query) const {
    return problem_.query_ordinals[static_cast<size_t>(query)];
  }
  int64_t row_ordinal(int64_t row) const { return problem_.row_ordinals[static_cast<size_t>(row)]; }
  int64_t own_place(int64_t query) const { return before(modality(query), ordinal(query) + 1) - 1; }
  // Rows of a modality that are earlier than a token.
  int64_t before(Modality wanted, int64_t ordinal) const {
    int64_t count = 0;
    for (int64_t row = 0; row < problem_.rows() && row_ordinal(row) < ordinal; ++row) {
      count += row_modality(row) == wanted;
    }
    return count;
  }

  const Problem& problem_;
  bool by_key_, by_query_, by_place_;
  std::array<std::array<int64_t, 4>, 4> shift_;  // by modality of query and key
};

// All pairs of a query and a row, looked up once.
struct Coordinates {
  Coordinates(const Problem& problem, Boundary boundary) {
    const Definition definition(problem, boundary);
    for (int64_t row = 0; row < problem.rows(); ++row) {
      key.push_back(definition.key(row));
      place.push_back(definition.place(row));
    }
    for (int64_t q = 0; q < problem.shape.queries; ++q) {
      later.push_back(definition.later_queries(q));
      for (int kind = 0; kind < 4; ++kind) {
        query.push_back(definition.query(q, static_cast<Modality>(kind)));
        reach.push_back(definition.reach(q, static_cast<Modality>(kind)));
      }
    }
  }
  std::vector<int64_t> key, place;           // [rows]
  std::vector<int64_t> query, reach, later;  // [queries × modalities of keys], the last [queries]
};

// Whether a row lies on what a query asks for, later rows of its slashes and columns included: a
// neighbour in its tile may read those.
bool asks(const Problem& problem, const Coordinates& at, const LineIndex& index, int64_t query,
          int64_t row) {
  const auto pair = static_cast<size_t>(
      query * 4 + static_cast<int64_t>(problem.row_modalities[static_cast<size_t>(row)]));
  const int64_t c = at.query[pair], r = at.reach[pair], j = at.key[static_cast<size_t>(row)];
  const auto phase = [&](int64_t value) {
    return (value % index.stride + index.stride) % index.stride;
  };
  const bool seen = j <= r;
  return at.place[static_cast<size_t>(row)] < index.sink ||
         (seen &&
          (index.everything || at.later[static_cast<size_t>(query)] < index.bottom ||
           (!index.horizontal.empty() && contains(index.horizontal, phase(c))) ||
           r - j < index.local || (index.segment > 0 && r / index.segment == j / index.segment))) ||
         contains(index.columns, j) || contains(index.slashes, c - j) ||
         (!index.vertical.empty() && contains(index.vertical, phase(j))) ||
         (!index.slash.empty() && contains(index.slash, phase(c - j)));
}

std::vector<int64_t> rows_of(const Plan& plan, const Tile& tile) {
  std::vector<int64_t> rows;
  for (int64_t s = tile.segment_begin; s < tile.segment_end; ++s) {
    const Segment& segment = plan.segments[static_cast<size_t>(s)];
    for (int64_t i = 0; i < segment.count; ++i) {
      rows.push_back(segment.gathered() ? plan.gathered[static_cast<size_t>(segment.begin + i)]
                                        : segment.begin + i * segment.stride);
    }
  }
  return rows;
}

Plan plan_of(const Problem& problem, Boundary boundary, const LineIndex& index) {
  PlanBuilder builder(problem.queries(), problem.memory());
  for (const Region& region : cut_regions(boundary, problem.queries(), problem.memory())) {
    add_line_tiles(builder, region, index, 0);
  }
  return builder.take();
}

TEST(LinePlan, ExpandsToTheDefinitionOverAnyInterleaving) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 40; ++round) {
    Problem problem = make_problem(random, {.queries = 1 + random.below(300),
                                            .earlier = random.below(200),
                                            .head_size = 1,
                                            .gaps = random.below(2) * 0.3});
    testing::mix_modalities(random, problem, 1 + static_cast<int>(random.below(4)),
                            1 + random.below(60));
    const LineIndex index = random_index(random, problem.rows());
    for (const Boundary boundary : boundaries) {
      SCOPED_TRACE(::testing::Message() << "round " << round << " " << boundary_name(boundary));
      const Plan plan = plan_of(problem, boundary, index);
      validate(plan, problem.queries(), problem.memory());
      const Coordinates at(problem, boundary);
      // Every query reads what it asks for, once, and nothing later than itself …
      const auto mask = expand(plan, problem.queries(), problem.memory(), 0);
      for (int64_t q = 0; q < problem.shape.queries; ++q) {
        for (int64_t row = 0; row < problem.rows(); ++row) {
          const int reads = mask[static_cast<size_t>(q * problem.rows() + row)];
          ASSERT_LE(reads, testing::causal(problem, q, row) ? 1 : 0) << q << " " << row;
          if (testing::causal(problem, q, row) && asks(problem, at, index, q, row)) {
            ASSERT_EQ(reads, 1) << q << " " << row;
          }
        }
      }
      // … and a tile reads nothing that none of its queries asks for.
      for (const Tile& tile : plan.tiles) {
        for (const int64_t row : rows_of(plan, tile)) {
          bool asked = false;
          for (int64_t i = tile.query_begin; i < tile.query_end && !asked; ++i) {
            asked = asks(problem, at, index, plan.query_rows[static_cast<size_t>(i)], row);
          }
          ASSERT_TRUE(asked) << "row " << row;
        }
      }
    }
  }
}

// Two stretches of video, each with text after it.
TEST(Region, TwoDimensionsCountEveryModalityByItself) {
  KINORA_FRESH_RANDOM(random);
  Problem problem = make_problem(random, {.queries = 11, .head_size = 1});
  const auto video = Modality::video, text = Modality::text;
  problem.row_modalities = {video, video, video, video, text, text,
                            video, video, video, text,  text};
  problem.query_modalities = problem.row_modalities;
  const auto regions = cut_regions(Boundary::both, problem.queries(), problem.memory());
  const auto region = [&](Modality query, Modality key) {
    return *std::find_if(regions.begin(), regions.end(), [&](const Region& one) {
      return one.query_modality == query && one.key_modality == key;
    });
  };
  using List = std::vector<int32_t>;
  ASSERT_EQ(regions.size(), 4u);
  // Within a modality the coordinate is the place.
  EXPECT_EQ(region(video, video).query_coordinates, (List{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(region(video, video).query_reach, (List{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(region(text, text).query_coordinates, (List{0, 1, 2, 3}));
  // The third text follows all seven keys of the video: it and key 6 meet on a diagonal.
  EXPECT_EQ(region(text, video).row_coordinates, (List{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(region(text, video).query_coordinates, (List{4, 5, 6, 7}));
  EXPECT_EQ(region(text, video).query_reach, (List{3, 3, 6, 6}));
  // The fifth of the video is the first to see text, both of it.
  EXPECT_EQ(region(video, text).query_coordinates, (List{-3, -2, -1, 0, 1, 2, 3}));
  EXPECT_EQ(region(video, text).query_reach, (List{-1, -1, -1, -1, 1, 1, 1}));
}

TEST(LinePlan, EveryQueryOfARegionIsInOneTile) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 50; ++round) {
    Problem problem = make_problem(random, {.queries = 1 + random.below(400), .head_size = 1});
    testing::mix_modalities(random, problem, 4, 30);
    const LineIndex index = random_index(random, problem.rows());
    for (const Boundary boundary : boundaries) {
      for (const Region& region : cut_regions(boundary, problem.queries(), problem.memory())) {
        std::vector<int32_t> seen;
        for (const auto& tile : group_queries(region, index)) {
          EXPECT_TRUE(std::is_sorted(tile.begin(), tile.end()));
          seen.insert(seen.end(), tile.begin(), tile.end());
        }
        std::sort(seen.begin(), seen.end());
        std::vector<int32_t> wanted;
        for (size_t i = 0; i < region.queries.size(); ++i) {
          if (region.query_reach[i] >= 0) wanted.push_back(static_cast<int32_t>(i));
        }
        EXPECT_EQ(seen, wanted);
      }
    }
  }
}

TEST(LinePlan, SelectingEverythingIsDenseToTheLastBit) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  // So many tiles that some run together (attention/cpu/bundle.h).
  constexpr int heads = 12;
  Problem problem = make_problem(
      random, {.queries = 500, .earlier = 77, .heads = heads, .kv_heads = 3, .head_size = 24});
  testing::mix_modalities(random, problem, 3, 40);
  const auto run = [&](const Plan& plan) {
    std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()));
    run_plan(Context(pool), plan, problem.queries(), problem.memory(), problem.scale,
             TensorView::of(out.data(), problem.out_shape()));
    return out;
  };
  const auto dense = run(dense_plan(problem.queries(), problem.memory()));
  std::vector<LineIndex> indexes(6);
  indexes[0].everything = true;
  indexes[1].local = 1000;
  indexes[2].stride = 1;
  indexes[2].vertical = {0};
  indexes[3].stride = 1;
  indexes[3].slash = {0};
  indexes[4].bottom = 500;
  indexes[5].slashes.resize(600);
  std::iota(indexes[5].slashes.begin(), indexes[5].slashes.end(), 0);
  for (const LineIndex& index : indexes) {
    for (const Boundary boundary : {Boundary::none, Boundary::query}) {
      PlanBuilder builder(problem.queries(), problem.memory());
      for (const Region& region : cut_regions(boundary, problem.queries(), problem.memory())) {
        for (int head = 0; head < heads; ++head) add_line_tiles(builder, region, index, head);
      }
      const auto out = run(builder.take());
      EXPECT_EQ(std::memcmp(out.data(), dense.data(), dense.size() * sizeof(float)), 0);
    }
    // Key boundaries change the order of summation, hence the last bits and nothing else.
    for (const Boundary boundary : {Boundary::key, Boundary::both}) {
      PlanBuilder builder(problem.queries(), problem.memory());
      for (const Region& region : cut_regions(boundary, problem.queries(), problem.memory())) {
        for (int head = 0; head < heads; head += 2) {
          add_line_tiles(builder, region, index, head, 2);
        }
      }
      const auto out = run(builder.take());
      EXPECT_LT(testing::relative_error(std::span<const float>(out), std::span<const float>(dense)),
                2e-6);
    }
  }
}

// Columns and slashes of every head by themselves, as vertical-slash finds them, in all regions.
TEST(LinePlan, HeadsWithLinesOfTheirOwnMatchTheDefinition) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  for (const Boundary boundary : boundaries) {
    for (const int64_t queries : {65, 331}) {
      Problem problem = make_problem(random, {.queries = queries,
                                              .earlier = 600,
                                              .heads = 12,
                                              .kv_heads = 4,
                                              .head_size = 1 + random.below(20),
                                              .gaps = random.below(2) * 0.2});
      testing::mix_modalities(random, problem, 2, 300);
      PlanBuilder builder(problem.queries(), problem.memory());
      for (const Region& region : cut_regions(boundary, problem.queries(), problem.memory())) {
        for (int head = 0; head < 12; ++head) {
          LineIndex index = random_index(random, problem.rows());
          for (int32_t i = 0; i < 900; ++i) {
            if (random.below(2) == 0) index.columns.push_back(i);
          }
          std::sort(index.columns.begin(), index.columns.end());
          const auto end = std::unique(index.columns.begin(), index.columns.end());
          index.columns.erase(end, index.columns.end());
          add_line_tiles(builder, region, index, head);
        }
      }
      const Plan plan = builder.take();
      const auto expected = testing::reference_of(problem, plan);
      std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()));
      run_plan(Context(pool), plan, problem.queries(), problem.memory(), problem.scale,
               TensorView::of(out.data(), problem.out_shape()));
      EXPECT_LE(testing::relative_error(std::span<const float>(out),
                                        std::span<const double>(expected.out)),
                testing::f32_tolerance(expected))
          << boundary_name(boundary) << " " << queries;
    }
  }
}

TEST(LinePlan, GridNeedsNoGatherInAnUnbrokenRun) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make_problem(random, {.queries = 1000, .head_size = 1});
  LineIndex index;
  index.sink = 4;
  index.stride = 64;
  index.vertical = {3, 17};
  index.slash = {0, 5, 6};
  index.horizontal = {3};
  const Plan plan = plan_of(problem, Boundary::none, index);
  EXPECT_TRUE(plan.gathered.empty());
}

// Every 16th key back and the nearest 16: what a query asks for is 1/16 of the keys and a little,
// and what its tile adds must not grow beyond a band of `comb_tile` strides.
TEST(LinePlan, AStridedPatternOfAdjacentFramesStaysSparse) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make_problem(random, {.queries = 4096, .head_size = 1});
  LineIndex index;
  index.local = 16;
  index.stride = 16;
  index.slash = {0};
  const Plan plan = plan_of(problem, Boundary::none, index);
  EXPECT_TRUE(plan.gathered.empty());
  const auto pairs = static_cast<double>(attended_pairs(plan, problem.queries(), problem.memory()));
  const auto dense = static_cast<double>(dense_pairs(1, problem.queries(), problem.memory()));
  EXPECT_LT(pairs / dense, 1.0 / 16 + 1.0 * comb_tile * 16 / 4096 + 0.01);
}

TEST(LinePlan, RefusesNonsense) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make_problem(random, {.queries = 10, .head_size = 1});
  LineIndex zero_stride;
  zero_stride.vertical = {0};
  EXPECT_THROW(plan_of(problem, Boundary::none, zero_stride), Error);
  LineIndex phase;
  phase.stride = 4;
  phase.slash = {4};
  EXPECT_THROW(plan_of(problem, Boundary::none, phase), Error);
  phase.slash = {2, 1};
  EXPECT_THROW(plan_of(problem, Boundary::none, phase), Error);
  LineIndex negative;
  negative.local = -1;
  EXPECT_THROW(plan_of(problem, Boundary::none, negative), Error);
  EXPECT_THROW(parse_boundary("diagonal"), Error);
}

}  // namespace
}  // namespace kinora
