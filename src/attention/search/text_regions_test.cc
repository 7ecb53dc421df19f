// What the search allows where text asks: patterns that would find what another question asks for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "attention/policies/pattern_attention.h"
#include "attention/search/search.h"
#include "attention/test_support.h"

namespace kinora {
namespace {

using testing::make_problem;
using testing::Problem;

constexpr int64_t count = 3200;
constexpr int64_t question = 60;
constexpr int64_t size = 16;
constexpr int64_t stride = 20;

// Text and video in turn. Every query attends to every 20th key, the question at the end as well:
// as this one prompt shows it, a grid comes closest.
Problem grid_of_all(Random& random) {
  Problem problem = make_problem(random, {.queries = count, .head_size = size});
  for (int64_t row = 0; row < count; ++row) {
    float* key = &problem.key_data[static_cast<size_t>(row * size)];
    float* query = &problem.query_data[static_cast<size_t>(row * size)];
    for (int64_t c = 0; c < size; ++c) query[c] *= 0.1f;
    query[0] = 6;
    key[0] = row % stride == 7 ? 6.0f : 0.0f;
    key[1] = 0;
  }
  Modality modality = Modality::video;
  for (int64_t row = 0; row < count;) {  // whole strides, so that lines run on within a modality
    const int64_t end = std::min(count, row + stride * (1 + random.below(7)));
    for (; row < end; ++row) problem.row_modalities[static_cast<size_t>(row)] = modality;
    modality = modality == Modality::text ? Modality::video : Modality::text;
  }
  std::fill(problem.row_modalities.end() - question, problem.row_modalities.end(), Modality::text);
  problem.query_modalities = problem.row_modalities;
  problem.scale = 0.25f;
  return problem;
}

// The same prompt with a question about six frames' tokens that lie between the lines.
Problem with_another_question(Problem problem, Random& random) {
  int64_t first = 0;
  do {
    first = stride * (20 + random.below(100)) + 8 + random.below(7);
  } while (problem.row_modalities[static_cast<size_t>(first)] != Modality::video);
  for (int64_t row = first; row < first + 6; ++row) {
    problem.key_data[static_cast<size_t>(row * size + 1)] = 8;
  }
  for (int64_t q = count - question; q < count; ++q) {
    problem.query_data[static_cast<size_t>(q * size)] = 0;
    problem.query_data[static_cast<size_t>(q * size + 1)] = 8;
  }
  return problem;
}

SearchOptions options_with(Boundary boundary, int64_t last) {
  SearchOptions options;
  options.grow = false;
  options.boundaries = {boundary};
  options.dense_share = 0.5;
  options.dense_last = last;
  // Far fewer columns than the grid has lines, so that the grid has the smallest error.
  options.candidates = {parse_pattern("a-shape:sink=128,local=2048"),
                        parse_pattern("vertical-slash:verticals=400,slashes=200"),
                        parse_pattern("grid:sink=128,local=512,lines=v")};
  return options;
}

bool asked_by_text(const RegionPattern& pattern) {
  return pattern.query.value_or(Modality::text) == Modality::text;
}

TEST(TextRegions, FollowAQuestionThatIsSearched) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  const Problem problem = grid_of_all(random);
  for (const Boundary boundary : {Boundary::none, Boundary::key, Boundary::query, Boundary::both}) {
    for (const int64_t last : {int64_t{0}, default_dense_last}) {
      const HeadChoice choice = search_head(context, problem.queries(), problem.memory(),
                                            problem.scale, 0, options_with(boundary, last));
      bool grids_for_text = false, grids_for_video = false;
      for (const RegionPattern& pattern : choice.patterns) {
        const std::string& kind = pattern.spec.kind->name;
        (asked_by_text(pattern) ? grids_for_text : grids_for_video) |= kind == "grid";
        EXPECT_TRUE(last > 0 || !asked_by_text(pattern) || kind == "vertical-slash") << kind;
      }
      EXPECT_EQ(grids_for_text, last > 0) << boundary_name(boundary) << " " << last;
      const bool video_apart = boundary == Boundary::query || boundary == Boundary::both;
      EXPECT_EQ(grids_for_video, video_apart) << boundary_name(boundary) << " " << last;
    }
  }
}

// Whatever the sample's question looked at, the next one finds its own fact between the lines.
TEST(TextRegions, FindWhatAnotherQuestionAsksFor) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  const Problem sample = grid_of_all(random);
  const Problem asked = with_another_question(sample, random);
  const testing::Expected expected = testing::reference(
      asked, [&](int64_t q, int64_t, int64_t row) { return testing::causal(asked, q, row); });
  for (const Boundary boundary : {Boundary::none, Boundary::key, Boundary::query, Boundary::both}) {
    const auto error = [&](int64_t last) {
      const HeadChoice choice = search_head(context, sample.queries(), sample.memory(),
                                            sample.scale, 0, options_with(boundary, last));
      PatternAttention policy("table", choice,
                              {.dense_below = 0, .least_queries = 2, .dense_last = 0});
      Tensor out(DType::f32, asked.out_shape());
      policy.attend(context, 0, asked.queries(), asked.memory(), asked.scale, out);
      const float* answer = out.data<float>() + (count - 1) * size;  // an answer goes on from here
      double apart = 0, total = 0;
      for (int64_t c = 0; c < size; ++c) {
        const double dense = expected.out[static_cast<size_t>((count - 1) * size + c)];
        apart += std::pow(double{answer[c]} - dense, 2);
        total += dense * dense;
      }
      return std::sqrt(apart / total);
    };
    EXPECT_LT(error(0), 0.05) << boundary_name(boundary);
    EXPECT_GT(error(default_dense_last), 0.3) << boundary_name(boundary);
  }
}

// Videos alone have nothing that asks: all patterns compete, whether or not a question is searched.
TEST(TextRegions, LeaveVideosTheirGrids) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  Problem problem = grid_of_all(random);
  std::fill(problem.row_modalities.begin(), problem.row_modalities.end(), Modality::video);
  problem.query_modalities = problem.row_modalities;
  for (const int64_t last : {int64_t{0}, default_dense_last}) {
    const HeadChoice choice = search_head(context, problem.queries(), problem.memory(),
                                          problem.scale, 0, options_with(Boundary::none, last));
    EXPECT_EQ(choice.patterns.front().spec.kind->name, "grid");
  }
}

// A budget that no such pattern keeps still has the small A-shape to fall back on.
TEST(TextRegions, KeepTheBudgetWithoutACandidate) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  const Problem problem = grid_of_all(random);
  SearchOptions options = options_with(Boundary::none, 0);
  options.candidates = {parse_pattern("grid:sink=128,local=512,lines=v")};
  options.grow = true;
  const HeadChoice choice =
      search_head(context, problem.queries(), problem.memory(), problem.scale, 0, options);
  EXPECT_EQ(choice.patterns.front().spec.kind->name, "a-shape");
  EXPECT_LE(choice.flops, options.dense_share);
}

}  // namespace
}  // namespace kinora
