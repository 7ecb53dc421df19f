// Spaces against the regions they are made of: nothing is lost, nothing is there twice.
#include "attention/cuda/lines/line_space.h"

#include <gtest/gtest.h>

#include <set>

#include "attention/plan/line_plan.h"
#include "attention/test_support.h"

namespace kinora {
namespace {

using cuda_attention::line_space;
using cuda_attention::LineSpace;
using cuda_attention::LineTile;
using cuda_attention::ProbeRun;
using testing::make_problem;
using testing::Problem;

Problem mixed_problem(Random& random, int64_t longest_run) {
  Problem problem = make_problem(random, {.queries = 1 + random.below(500),
                                          .earlier = random.below(600),
                                          .heads = 2,
                                          .kv_heads = 1,
                                          .head_size = 8});
  testing::mix_modalities(random, problem, 2 + static_cast<int>(random.below(2)), longest_run);
  return problem;
}

int32_t query_at(const LineSpace& space, size_t place) {
  return space.queries.empty() ? static_cast<int32_t>(place) : space.queries[place];
}

int32_t limit_of(const LineSpace& space, int32_t query) {
  return space.limits.empty() ? space.limit_base + query : space.limits[static_cast<size_t>(query)];
}

// Every space that a GPU can have, with its region.
template <class Check>
void each_space(Random& random, const Check& check) {
  for (int round = 0; round < 60; ++round) {
    const Problem problem = mixed_problem(random, round % 3 == 0 ? 9 : 250);
    for (const Boundary boundary :
         {Boundary::none, Boundary::key, Boundary::query, Boundary::both}) {
      const ProbeOf of = random.below(2) == 0 ? ProbeOf::region : ProbeOf::each_modality;
      for (const Region& region : cut_regions(boundary, problem.queries(), problem.memory())) {
        const auto space = line_space(region, boundary, problem.queries(), problem.memory(), of);
        EXPECT_EQ(space.has_value(), boundary == Boundary::both || region.unbroken);
        if (space) check(problem, boundary, region, *space, of);
      }
    }
  }
}

TEST(LineSpace, SeesWhatItsRegionSees) {
  KINORA_FRESH_RANDOM(random);
  each_space(random, [](const Problem& problem, Boundary boundary, const Region& region,
                        const LineSpace& space, ProbeOf) {
    ASSERT_EQ(space.row_count, region.row_count());
    size_t place = 0;
    for (size_t i = 0; i < region.queries.size(); ++i) {
      int64_t seen = 0;
      for (const int32_t row : region.rows) {
        const auto ordinal = problem.row_ordinals[static_cast<size_t>(row)];
        seen += ordinal <= problem.query_ordinals[static_cast<size_t>(region.queries[i])] ? 1 : 0;
      }
      if (seen == 0) continue;
      ASSERT_LT(place, static_cast<size_t>(space.query_count));
      EXPECT_EQ(query_at(space, place), region.queries[i]);
      EXPECT_EQ(limit_of(space, region.queries[i]), seen);
      ++place;
    }
    EXPECT_EQ(place, static_cast<size_t>(space.query_count));
    EXPECT_EQ(space.covers_all, space.query_count == problem.shape.queries);
    for (size_t i = 0; i < region.rows.size(); ++i) {
      const int64_t row =
          space.row_list.empty() ? space.row_begin + static_cast<int64_t>(i) : space.row_list[i];
      EXPECT_EQ(row, region.rows[i]);
      EXPECT_EQ(region.row_coordinates[i], space.first_row + static_cast<int32_t>(i))
          << boundary_name(boundary);
    }
  });
}

TEST(LineSpace, TilesHaveEveryQueryOnceAndNoGap) {
  KINORA_FRESH_RANDOM(random);
  each_space(
      random, [](const Problem&, Boundary, const Region& region, const LineSpace& space, ProbeOf) {
        int32_t next = 0;
        bool adjacent = true;
        const size_t dropped = region.queries.size() - static_cast<size_t>(space.query_count);
        for (const LineTile& tile : space.tiles) {
          EXPECT_EQ(tile.first, next);
          ASSERT_GT(tile.count, 0);
          EXPECT_LE(tile.count, line_tile);
          const int32_t height = space.heights.at(static_cast<size_t>(tile.drawn));
          EXPECT_GE(height, tile.count);
          if (tile.drawn > 0) {
            EXPECT_LT(space.heights[static_cast<size_t>(tile.drawn) - 1], tile.count);
          }
          for (int32_t i = 0; i < tile.count; ++i) {
            const size_t at = dropped + static_cast<size_t>(tile.first + i);
            EXPECT_EQ(region.query_coordinates[at] - space.first_row, tile.coordinate + i);
          }
          const size_t first = dropped + static_cast<size_t>(tile.first);
          EXPECT_EQ(tile.reach, region.query_reach[first] - space.first_row);
          adjacent = adjacent && tile.coordinate == space.tiles.front().coordinate + tile.first;
          next += tile.count;
        }
        EXPECT_EQ(next, space.query_count);
        EXPECT_EQ(adjacent, space.adjacent);
        EXPECT_LE(space.heights.size(), size_t{cuda_attention::most_drawn_heights});
        if (!space.tiles.empty()) {
          EXPECT_EQ(space.first_query, region.query_coordinates[dropped]);
        }
      });
}

TEST(LineSpace, LooksAtTheLastQueriesOfEachModality) {
  KINORA_FRESH_RANDOM(random);
  each_space(random, [](const Problem& problem, Boundary, const Region& region,
                        const LineSpace& space, ProbeOf of) {
    std::set<int32_t> wanted, found;
    std::array<int, 4> taken{};
    for (size_t i = region.queries.size(); i > 0; --i) {
      const int32_t query = region.queries[i - 1];
      if (limit_of(space, query) <= 0) break;
      const auto modality =
          of == ProbeOf::region
              ? size_t{0}
              : static_cast<size_t>(problem.query_modalities[static_cast<size_t>(query)]);
      if (taken[modality]++ < 64) wanted.insert(query);
    }
    for (const ProbeRun& run : space.probes) {
      EXPECT_LE(run.count, 64);
      ASSERT_EQ(std::ssize(run.ordinals), run.count);
      for (int32_t i = 0; i < run.count; ++i) {
        const int32_t query = run.query + i;
        EXPECT_TRUE(found.insert(query).second);
        EXPECT_EQ(run.limit + i * run.limit_step, limit_of(space, query));
        const auto at = std::find(region.queries.begin(), region.queries.end(), query);
        ASSERT_NE(at, region.queries.end());
        const auto place = static_cast<size_t>(at - region.queries.begin());
        EXPECT_EQ(run.coordinate + i, region.query_coordinates[place] - space.first_row);
        // Its ordinal and those of the rows say the same.
        const int32_t ordinal = run.ordinals[static_cast<size_t>(i)];
        int64_t seen = 0;
        for (size_t row = 0; row < region.rows.size(); ++row) {
          const int32_t own = space.row_ordinals.empty()
                                  ? problem.row_ordinals[static_cast<size_t>(region.rows[row])]
                                  : space.row_ordinals[row];
          seen += own <= ordinal ? 1 : 0;
        }
        EXPECT_EQ(seen, limit_of(space, query));
      }
    }
    EXPECT_EQ(found, wanted);
  });
}

}  // namespace
}  // namespace kinora
