// Plans of regions made on the device, and grids with a window besides slashes, against what they
// are defined to read.
#include <gtest/gtest.h>

#include <algorithm>

#include "attention/cuda/device_plan_test_support.h"
#include "attention/cuda/device_test_support.h"
#include "attention/cuda/lines/line_plan_cuda.h"
#include "attention/cuda/lines/line_test_support.h"
#include "attention/cuda/runner_cuda.h"
#include "attention/policies/policy.h"
#include "attention/report.h"
#include "attention/search/probe.h"
#include "support/sanitized.h"

namespace kinora {
namespace {

using cuda_attention::DeviceLines;
using cuda_attention::DevicePlan;
using cuda_attention::FoundGrid;
using cuda_attention::LineHead;
using cuda_attention::LineSpace;
using cuda_attention::LineTile;
using testing::error_of;
using testing::Expected;
using testing::ints_of;
using testing::Kind;
using testing::PlacedProblem;
using testing::Problem;

constexpr int64_t head_count = 6;

bool has(const std::vector<int32_t>& list, int32_t item) {
  return std::binary_search(list.begin(), list.end(), item);
}

// A space's lines as the host sees them.
struct FoundLines {
  std::vector<std::vector<int32_t>> columns, slashes;
  std::vector<FoundGrid> grids;
};

FoundLines read_lines(const DeviceLines& lines) {
  FoundLines found;
  const auto lists = [](const Tensor& list, const Tensor& counts) {
    const std::vector<int32_t> all = ints_of(list), sizes = ints_of(counts);
    const auto capacity = static_cast<size_t>(list.size(1));
    std::vector<std::vector<int32_t>> own;
    for (size_t head = 0; head < sizes.size(); ++head) {
      const auto begin = all.begin() + static_cast<int64_t>(head * capacity);
      own.emplace_back(begin, begin + sizes[head]);
    }
    return own;
  };
  found.columns = lists(lines.columns, lines.column_counts);
  found.slashes = lists(lines.slashes, lines.slash_counts);
  if (lines.grids.defined()) {
    found.grids = testing::read_back(reinterpret_cast<const FoundGrid*>(lines.grids.view().raw()),
                                     head_count, lines.grids.device());
  }
  return found;
}

// What one head reads in a space, by definition: reads(place, row) for rows that the query sees.
class Definition {
 public:
  Definition(const LineSpace& space, const LineHead& told, const FoundLines& found, size_t head)
      : space_(space), told_(told) {
    if (told.has_grid != 0) {
      const FoundGrid& grid = found.grids.at(head);
      stride_ = grid.stride;
      local_ = grid.local;
      vertical_.assign(grid.vertical, grid.vertical + grid.vertical_count);
      slash_.assign(grid.slash, grid.slash + grid.slash_count);
    } else if (told.probed != 0) {
      columns_ = found.columns.at(head);
      slashes_ = found.slashes.at(head);
    }
    for (int32_t place = 0; place < static_cast<int32_t>(space.query_count); ++place) {
      if (!on_line(place)) others_.push_back(place);
    }
  }

  int32_t query(int32_t place) const {
    return space_.queries.empty() ? place : space_.queries[static_cast<size_t>(place)];
  }
  int32_t limit(int32_t place) const {
    const int32_t own = query(place);
    return space_.limits.empty() ? space_.limit_base + own
                                 : space_.limits[static_cast<size_t>(own)];
  }

  bool reads(int32_t place, int32_t row) const {
    if (told_.absent != 0) return false;
    if (told_.has_grid != 0) return reads_grid(place, row);
    if (place + static_cast<int64_t>(told_.bottom) >= space_.query_count) return true;
    const auto after =
        std::upper_bound(space_.tiles.begin(), space_.tiles.end(), place,
                         [](int32_t at, const LineTile& tile) { return at < tile.first; });
    const LineTile& tile = *std::prev(after);
    if (told_.probed == 0) {
      return row < told_.sink || (told_.local > 0 && row > tile.reach - told_.local);
    }
    if (has(columns_, row)) return true;
    for (int32_t i = 0; i < space_.heights[static_cast<size_t>(tile.drawn)]; ++i) {
      if (has(slashes_, tile.coordinate + i - row)) return true;
    }
    return false;
  }

 private:
  int32_t coordinate(int32_t place) const { return space_.first_query + place; }
  bool on_line(int32_t place) const {
    return told_.has_grid != 0 && told_.grid.horizontal != 0 &&
           has(vertical_, coordinate(place) % stride_);
  }
  int32_t reach(int32_t place) const {
    return space_.by_place ? limit(place) - 1 : coordinate(place) - space_.first_row;
  }
  bool reads_grid(int32_t place, int32_t row) const {
    if (on_line(place) || row < told_.grid.sink) return true;
    // Windows are those of a tile: of neighbours, of those that are on no horizontal line, or of
    // all where there are slashes too.
    if (local_ > 0) {
      int32_t first = place / 128 * 128;
      if (told_.grid.slash == 0) {
        const auto rank = std::lower_bound(others_.begin(), others_.end(), place) - others_.begin();
        first = others_[static_cast<size_t>(rank / 128 * 128)];
      }
      if (row > reach(first) - local_) return true;
    }
    const int32_t at = space_.first_row + row;
    if (told_.grid.vertical != 0 && has(vertical_, at % stride_)) return true;
    const int32_t distance = ((coordinate(place) - at) % stride_ + stride_) % stride_;
    return told_.grid.slash != 0 && has(slash_, distance);
  }

  const LineSpace& space_;
  const LineHead& told_;
  int32_t stride_ = 0, local_ = 0;
  std::vector<int32_t> vertical_, slash_, columns_, slashes_, others_;
};

// The keys of every query of a head, one tile each.
Plan defined_plan(const Problem& problem, const std::vector<LineSpace>& spaces,
                  const std::vector<std::vector<LineHead>>& heads,
                  const std::vector<FoundLines>& found) {
  PlanBuilder builder(problem.queries(), problem.memory());
  for (size_t head = 0; head < static_cast<size_t>(head_count); ++head) {
    std::vector<std::vector<int32_t>> rows(static_cast<size_t>(problem.shape.queries));
    for (size_t i = 0; i < spaces.size(); ++i) {
      const LineSpace& space = spaces[i];
      const Definition definition(space, heads[i][head], found[i], head);
      for (int32_t place = 0; place < static_cast<int32_t>(space.query_count); ++place) {
        for (int32_t row = 0; row < definition.limit(place); ++row) {
          if (!definition.reads(place, row)) continue;
          rows[static_cast<size_t>(definition.query(place))].push_back(
              space.row_list.empty() ? static_cast<int32_t>(space.row_begin) + row
                                     : space.row_list[static_cast<size_t>(row)]);
        }
      }
    }
    for (size_t query = 0; query < rows.size(); ++query) {
      std::sort(rows[query].begin(), rows[query].end());
      builder.begin_queries();
      builder.add_query(static_cast<int32_t>(query));
      builder.begin_segments();
      builder.add_gathered(rows[query]);
      builder.add_tile(static_cast<int>(head));
    }
  }
  return builder.take();
}

std::vector<LineHead> random_heads(Random& random, const LineSpace& space, int64_t absent) {
  std::vector<LineHead> heads;
  for (int64_t i = 0; i < head_count; ++i) {
    if (random.below(4) < absent) {
      heads.push_back({.absent = 1});
    } else if (space.adjacent && random.below(2) == 0) {
      heads.push_back(testing::random_grid_head(random, true));
    } else {
      heads.push_back(testing::random_line_head(random));
    }
  }
  return heads;
}

class CudaSpaces : public testing::OnGpu {
 protected:
  // Runs the spaces of a boundary onto one another and compares sets, pairs and output.
  void check(Random& random, const Kind& kind, const Problem& problem, Boundary boundary,
             const std::string& what) {
    PlacedProblem placed(problem, device_, kind.type, DType::f32);
    const Context context = placed.context(pool_);
    std::vector<LineSpace> spaces;
    for (const Region& region : cut_regions(boundary, problem.queries(), problem.memory())) {
      auto space = cuda_attention::line_space(region, boundary, placed.queries(), placed.memory(),
                                              ProbeOf::each_modality);
      if (!space) return;
      if (space->query_count == 0) continue;
      cuda_attention::upload(context, *space);
      spaces.push_back(std::move(*space));
    }
    std::vector<std::vector<LineHead>> heads;
    std::vector<FoundLines> found;
    int64_t pairs = 0;
    RunOptions run{.state = placed.state()};
    const int64_t absent = boundary == Boundary::none ? 0 : random.below(2);
    std::vector<std::vector<uint8_t>> masks(
        static_cast<size_t>(head_count),
        std::vector<uint8_t>(static_cast<size_t>(problem.shape.queries * problem.rows())));
    for (const LineSpace& space : spaces) {
      heads.push_back(random_heads(random, space, absent));
      Tensor keys, values;
      const RowSet rows = cuda_attention::rows_of(context, space, placed.memory(), keys, values);
      DeviceLines lines;
      found.emplace_back();
      if (std::ranges::any_of(heads.back(), [](const auto& head) { return head.probed != 0; })) {
        lines = cuda_attention::find_lines(context, space, placed.queries(), rows, problem.scale,
                                           heads.back());
        found.back() = read_lines(lines);
      }
      for (const DevicePlan& plan : cuda_attention::line_plans(
               context, space, placed.queries(), rows, heads.back(), lines, placed.out())) {
        cuda_attention::run_plan(context, plan, placed.queries(), rows, problem.scale, placed.out(),
                                 run);
        run.onto = true;
        const Tensor counted = cuda_attention::count_pairs(context, plan).to(Device::cpu());
        pairs += *reinterpret_cast<const int64_t*>(counted.view().raw());
        testing::add_reads(plan, device_, space.row_begin, space.row_list, problem.rows(), masks);
      }
    }
    const Plan expected = defined_plan(problem, spaces, heads, found);
    for (int head = 0; head < head_count; ++head) {
      ASSERT_EQ(masks[static_cast<size_t>(head)],
                expand(expected, problem.queries(), problem.memory(), head))
          << what << " head " << head;
    }
    EXPECT_EQ(pairs, attended_pairs(expected, problem.queries(), problem.memory())) << what;
    const Expected answer = testing::reference_of(problem, expected);
    EXPECT_LE(error_of(placed.result(), answer.out), testing::allowed(answer)) << what;
  }
};

TEST_F(CudaSpaces, PlansReadWhatTheyAreDefinedToRead) {
  KINORA_FRESH_RANDOM(random);
  for (const Kind& kind : testing::kernel_kinds) {
    for (const auto& [queries, earlier] : std::initializer_list<std::pair<int64_t, int64_t>>{
             {1, 0}, {65, 77}, {129, 31}, {200, 900}, {515, 0}, {300, 611}}) {
      if (testing::sanitized() && queries > 200) continue;
      for (const Boundary boundary :
           {Boundary::none, Boundary::key, Boundary::query, Boundary::both}) {
        Problem problem = testing::problem_of(random, kind, queries, earlier);
        testing::mix_modalities(random, problem, 2 + static_cast<int>(random.below(2)),
                                random.below(2) == 0 ? 11 : 400);
        check(random, kind, problem, boundary,
              std::string(boundary_name(boundary)) + " " + std::to_string(queries) + " of " +
                  std::to_string(queries + earlier) + " size " + std::to_string(kind.head_size));
      }
    }
  }
}

// The probe of a region, against the CPU's.
TEST_F(CudaSpaces, ProbesSeeWhatTheCpusSee) {
  KINORA_FRESH_RANDOM(random);
  for (const Kind& kind : testing::kernel_kinds) {
    for (const Boundary boundary : {Boundary::none, Boundary::query, Boundary::both}) {
      Problem problem = testing::problem_of(random, kind, 260, 500);
      testing::mix_modalities(random, problem, 2, random.below(2) == 0 ? 11 : 400);
      PlacedProblem placed(problem, device_, kind.type, DType::f32);
      const Context context = placed.context(pool_);
      for (const Region& region : cut_regions(boundary, problem.queries(), problem.memory())) {
        auto space = cuda_attention::line_space(region, boundary, placed.queries(), placed.memory(),
                                                ProbeOf::each_modality);
        ASSERT_TRUE(space);
        if (space->query_count == 0) continue;
        cuda_attention::upload(context, *space);
        Tensor keys, values;
        const RowSet rows = cuda_attention::rows_of(context, *space, placed.memory(), keys, values);
        std::vector<LineHead> heads(static_cast<size_t>(head_count));
        for (LineHead& head : heads) head = {.probed = 1, .strongest = {20, 3, 30, 5}};
        const FoundLines found = read_lines(cuda_attention::find_lines(
            context, *space, placed.queries(), rows, problem.scale, heads));
        for (size_t head = 0; head < heads.size(); ++head) {
          const Probe probe =
              probe_region(Context(pool_), problem.queries(), problem.memory(), region,
                           static_cast<int>(head), problem.scale, ProbeOf::each_modality);
          const std::vector<float> seen(
              probe.columns.begin(),
              probe.columns.begin() + space->probes.back().limit +
                  (space->probes.back().count - 1) * space->probes.back().limit_step);
          // Distances count from the first row here, and from ordinal 0 there.
          const auto distances =
              static_cast<size_t>(space->probes.back().coordinate + space->probes.back().count);
          const std::vector<float> diagonals(
              probe.diagonals.begin(), probe.diagonals.begin() + static_cast<int64_t>(distances));
          testing::expect_strongest(found.columns[head], seen, 20, 3);
          testing::expect_strongest(found.slashes[head], diagonals, 30, 5);
        }
      }
    }
  }
}

// Tables and boundaries through the policy: patterns whose tiles read what each of their queries
// reads, so that the CPU's own tiles give the same.
TEST_F(CudaSpaces, PoliciesWithBoundariesAttendAsOnTheCpu) {
  KINORA_FRESH_RANDOM(random);
  AttentionOptions options;
  options.sparse.dense_below = 0;
  options.frame_stride = 24;
  for (const char* name :
       {"a-shape:sink=40,local=100000,boundary=both", "a-shape:sink=40,local=100000,boundary=query",
        "tri-shape:sink=40,local=100000,bottom=90,boundary=both",
        "vertical-slash:verticals=100000,slashes=1,boundary=both",
        "vertical-slash:verticals=100000,slashes=1,boundary=query",
        "grid:stride=7,lines=s,boundary=both", "grid:stride=40,phases=2,lines=vs,boundary=both",
        "grid:stride=24,lines=hvs,boundary=both", "grid:stride=24,lines=hvs,local=100000"}) {
    for (const int64_t run : {17, 5000}) {
      Problem problem = testing::make_problem(random, {.queries = 400,
                                                       .earlier = 700,
                                                       .heads = 4,
                                                       .kv_heads = 2,
                                                       .head_size = 128,
                                                       .dtype = DType::bf16});
      testing::narrow_queries(problem);
      testing::mix_modalities(random, problem, 2, run);
      const auto here = make_attention(name, options), there = make_attention(name, options);
      for (int layer = 0; layer < 2; ++layer) {  // spaces are kept from layer to layer
        Tensor expected(DType::f32, problem.out_shape());
        here->attend(Context(pool_), layer, problem.queries(), problem.memory(), problem.scale,
                     expected);
        PlacedProblem placed(problem, device_, DType::f32, DType::f32);
        there->attend(placed.context(pool_), layer, placed.queries(), placed.memory(),
                      problem.scale, placed.out());
        const std::vector<float> values(expected.data<float>(),
                                        expected.data<float>() + expected.elements());
        EXPECT_LE(testing::relative_error(std::span<const float>(placed.result()),
                                          std::span<const float>(values)),
                  8e-3)
            << name << " runs of " << run;
        EXPECT_EQ(there->report()->pairs, here->report()->pairs) << name << " runs of " << run;
      }
      EXPECT_EQ(there->report()->dense_calls, 0);
    }
  }
}

}  // namespace
}  // namespace kinora
