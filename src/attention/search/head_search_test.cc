#include "attention/search/head_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/plan/line_plan.h"
#include "attention/policies/pattern_attention.h"
#include "attention/search/grid_search.h"
#include "attention/test_support.h"

namespace kinora {
namespace {

using testing::make_problem;
using testing::Problem;

double pairs_clock(const Plan& plan, const QueryView& queries, const RowSet& rows) {
  return 1e-9 * static_cast<double>(attended_pairs(plan, queries, rows));
}

// The search as docs/methods/mminference.md has it, the slow way: every size of every candidate is
// run to the end, in double precision.
class SlowSearch {
 public:
  SlowSearch(const Context& context, const Problem& problem, double budget,
             const SearchOptions& options, std::span<const float> weights)
      : context_(context),
        problem_(problem),
        budget_(budget),
        options_(options),
        weights_(weights) {
    Region all = cut_regions(Boundary::none, problem.queries(), problem.memory()).front();
    LineIndex index;
    index.everything = true;
    dense_plan_ = plan_of({all}, {index});
    dense_ = run(dense_plan_);
  }

  HeadChoice choose() const {
    HeadChoice best;
    for (const Boundary boundary : options_.boundaries) {
      const auto regions = cut_regions(boundary, problem_.queries(), problem_.memory());
      if (boundary != Boundary::none && regions.size() < 2) continue;
      HeadChoice choice;
      choice.boundary = boundary;
      for (const Region& region : regions) {
        RegionPattern pattern;
        if (boundary == Boundary::query || boundary == Boundary::both) {
          pattern.query = region.query_modality;
        }
        if (boundary == Boundary::key || boundary == Boundary::both) {
          pattern.key = region.key_modality;
        }
        pattern.spec = best_in(region, boundary);
        choice.patterns.push_back(pattern);
      }
      judge(choice, regions);
      for (int step = 0; step < 8 && choice.seconds > budget_; ++step) {
        HeadChoice smaller = choice;
        for (size_t i = 0; i < regions.size(); ++i) {
          resize(smaller.patterns[i].spec, 0.95 * budget_ / choice.seconds);
        }
        const auto indexes = resolved(smaller, regions);
        for (size_t i = 0; i < regions.size(); ++i) {
          if (text_reads_text(regions[i], boundary) && !window(indexes[i])) {
            smaller.patterns[i].spec = choice.patterns[i].spec;
          }
        }
        judge(smaller, regions);
        if (smaller.seconds >= choice.seconds) break;
        choice = smaller;
      }
      const bool fits = choice.seconds <= budget_;
      const bool fitted = best.seconds <= budget_;
      if (best.patterns.empty() || (fits != fitted ? fits
                                    : fits         ? choice.error < best.error - same_error
                                                   : choice.seconds < best.seconds)) {
        best = choice;
      }
    }
    return best;
  }

 private:
  struct Outcome {
    std::vector<double> out;       // [queries, d]
    std::vector<double> log_sums;  // [queries]
  };

  Plan plan_of(const std::vector<Region>& regions, const std::vector<LineIndex>& indexes) const {
    PlanBuilder builder(problem_.queries(), problem_.memory());
    for (size_t i = 0; i < regions.size(); ++i) add_line_tiles(builder, regions[i], indexes[i], 0);
    return builder.take();
  }
  double cost(const Plan& plan) const {
    return pairs_clock(plan, problem_.queries(), problem_.memory());
  }

  Outcome run(const Plan& plan) const {
    const std::vector<uint8_t> mask = expand(plan, problem_.queries(), problem_.memory(), 0);
    const int64_t size = problem_.shape.head_size, rows = problem_.rows();
    Outcome outcome;
    for (int64_t q = 0; q < problem_.shape.queries; ++q) {
      std::vector<double> out(static_cast<size_t>(size));
      double sum = 0;
      for (int64_t row = 0; row < rows; ++row) {
        if (mask[static_cast<size_t>(q * rows + row)] == 0) continue;
        double score = 0;
        for (int64_t c = 0; c < size; ++c) {
          score += double{problem_.query_data[static_cast<size_t>(q * size + c)]} *
                   double{problem_.key_data[static_cast<size_t>(row * size + c)]};
        }
        const double weight = std::exp(double{problem_.scale} * score);
        sum += weight;
        for (size_t c = 0; c < out.size(); ++c) {
          out[c] += weight * double{problem_.value_data[static_cast<size_t>(row * size) + c]};
        }
      }
      for (const double value : out) outcome.out.push_back(sum > 0 ? value / sum : 0);
      outcome.log_sums.push_back(std::log(sum));
    }
    return outcome;
  }

  double apart(const Region& region, const Outcome& actual, const Outcome& expected,
               bool shares) const {
    const auto size = static_cast<size_t>(problem_.shape.head_size);
    double total = 0;
    for (const int32_t query : region.queries) {
      const auto q = static_cast<size_t>(query);
      const double a = shares ? std::exp(actual.log_sums[q] - dense_.log_sums[q]) : 1;
      const double e = shares ? std::exp(expected.log_sums[q] - dense_.log_sums[q]) : 1;
      for (size_t c = 0; c < size; ++c) {
        total += double{weights_[q]} *
                 std::pow(a * actual.out[q * size + c] - e * expected.out[q * size + c], 2);
      }
    }
    return total;
  }

  bool text_reads_text(const Region& region, Boundary boundary) const {
    if ((boundary == Boundary::key || boundary == Boundary::both) &&
        region.key_modality != Modality::text) {
      return false;
    }
    return std::any_of(region.queries.begin(), region.queries.end(), [&](int32_t query) {
      return problem_.query_modalities[static_cast<size_t>(query)] == Modality::text;
    });
  }
  // 64 tokens of 25,000 are the nearest one here.
  bool window(const LineIndex& index) const {
    return index.everything || index.local >= 1 ||
           (!index.slashes.empty() && index.slashes.front() == 0);
  }

  PatternSpec best_in(Region region, Boundary boundary) const {
    region.pass = 0;
    LineIndex everything;
    everything.everything = true;
    const Plan all = plan_of({region}, {everything});
    const double budget = budget_ * (cost(all) / cost(dense_plan_) + options_.spare);
    if (cost(all) <= budget) return {};
    const Outcome full = run(all);
    const Probe probe = probe_region(context_, problem_.queries(), problem_.memory(), region, 0,
                                     problem_.scale, ProbeOf::each_modality);
    PatternSpec best = options_.budget;
    bool fitted = false;
    double least = std::numeric_limits<double>::infinity();
    const bool shares = boundary == Boundary::key || boundary == Boundary::both;
    Outcome nothing = full;
    std::fill(nothing.out.begin(), nothing.out.end(), 0.0);
    const double same = same_error * std::sqrt(apart(region, nothing, full, shares));
    // What there is if no candidate fits comes first; any that fits beats it.
    std::vector<PatternSpec> candidates = options_.candidates;
    candidates.insert(candidates.begin(), options_.budget);
    for (size_t i = 0; i < candidates.size(); ++i) {
      PatternSpec spec = candidates[i];
      std::optional<PatternSpec> low, high;
      for (int step = 0; step < 8; ++step) {
        const LineIndex index = resolve(scaled(spec, problem_.rows()), region, probe);
        if (text_reads_text(region, boundary) && !window(index)) break;
        const Plan plan = plan_of({region}, {index});
        const double seconds = cost(plan);
        const bool fits = seconds <= budget;
        const double measure = fits ? std::sqrt(apart(region, run(plan), full, shares)) : seconds;
        if (fits != fitted ? fits : measure < least - (fits ? same : 0)) {
          best = spec;
          least = measure;
          fitted = fits;
        }
        if (fits && (!options_.grow || seconds > 0.85 * budget)) break;
        (fits ? low : high) = spec;
        if (low && high) {
          if (!options_.grow) break;
          spec = between(*low, *high);
          if (spec == *low || spec == *high) break;
        } else if (!resize(spec, 0.95 * budget / seconds)) {
          break;
        }
      }
      if (i == 0 && fitted) least = std::numeric_limits<double>::infinity();
    }
    return best;
  }

  std::vector<LineIndex> resolved(const HeadChoice& choice,
                                  const std::vector<Region>& regions) const {
    return resolve_head(context_, choice, regions, problem_.queries(), problem_.memory(), 0,
                        problem_.scale, problem_.rows());
  }

  void judge(HeadChoice& choice, const std::vector<Region>& regions) const {
    const Plan plan = plan_of(regions, resolved(choice, regions));
    choice.seconds = cost(plan);
    const Outcome outcome = run(plan);
    const Region all = cut_regions(Boundary::none, problem_.queries(), problem_.memory()).front();
    Outcome nothing = dense_;
    std::fill(nothing.out.begin(), nothing.out.end(), 0.0);
    choice.error =
        std::sqrt(apart(all, outcome, dense_, false) / apart(all, nothing, dense_, false));
    choice.recall = 0;
    for (size_t q = 0; q < outcome.log_sums.size(); ++q) {
      choice.recall += std::exp(outcome.log_sums[q] - dense_.log_sums[q]);
    }
    choice.recall /= static_cast<double>(outcome.log_sums.size());
  }

  const Context& context_;
  const Problem& problem_;
  double budget_;
  const SearchOptions& options_;
  std::span<const float> weights_;
  Plan dense_plan_;
  Outcome dense_;
};

// Keys that some queries look for, so that patterns differ in what they miss.
Problem lively_problem(Random& random, int64_t queries, int64_t earlier, int64_t stride) {
  Problem problem = make_problem(random, {.queries = queries, .earlier = earlier, .head_size = 8});
  for (int64_t row = 0; row < problem.rows(); ++row) {
    if (row % stride == 3) problem.key_data[static_cast<size_t>(row * 8)] += 3;
  }
  for (int64_t q = 0; q < queries; ++q) problem.query_data[static_cast<size_t>(q * 8)] += 2;
  testing::mix_modalities(random, problem, 2, 60);
  return problem;
}

TEST(HeadSearch, ChoosesWhatTheSlowWayChooses) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  SearchOptions given;
  given.frame_stride = 13;
  given.cost = pairs_clock;
  given.slack = 1;
  const SearchOptions options = with_candidates(given);
  for (const double share : {0.15, 0.35, 0.6}) {
    const Problem problem = lively_problem(random, 150 + random.below(60), random.below(120), 13);
    std::vector<float> weights;
    for (int64_t i = 0; i < problem.shape.queries; ++i) {
      weights.push_back(static_cast<float>(random.uniform(0.1, 2.0)));
    }
    const double budget =
        share * 1e-9 * static_cast<double>(dense_pairs(1, problem.queries(), problem.memory()));
    const HeadChoice slow = SlowSearch(context, problem, budget, options, weights).choose();
    const HeadChoice fast = search_head(context, problem.queries(), problem.memory(), problem.scale,
                                        0, budget, given, weights);
    EXPECT_EQ(to_string(fast), to_string(slow));
    EXPECT_NEAR(fast.error, slow.error, 1e-4);
    EXPECT_NEAR(fast.recall, slow.recall, 1e-4);
    EXPECT_NEAR(fast.seconds, slow.seconds, 1e-12);
  }
}

TEST(HeadSearch, FoldsFindTheGridsThatFoldingFinds) {
  KINORA_FRESH_RANDOM(random);
  for (const double gaps : {0.0, 0.4}) {
    const Problem problem =
        make_problem(random, {.queries = 40, .earlier = 700, .head_size = 1, .gaps = gaps});
    const Region region = cut_regions(Boundary::none, problem.queries(), problem.memory()).front();
    Probe probe;
    probe.queries = 5;
    const auto positive = [&](int64_t count) {
      std::vector<float> values;
      for (int64_t i = 0; i < count; ++i) {
        values.push_back(static_cast<float>(random.uniform(0, i % 37 == 5 ? 2 : 1)));
      }
      return values;
    };
    probe.columns = positive(problem.rows());
    probe.diagonals = positive(region.query_coordinates.back() + 1);
    Probe folded = probe;
    folded.folds = fold_grids(region, probe);
    const int32_t high = largest_stride(region);
    EXPECT_EQ(high, problem.rows() / 4);
    for (const int32_t phases : {1, 2, 7, 90}) {
      for (int lines = 1; lines < 8; ++lines) {
        const GridLines wanted{(lines & 1) != 0, (lines & 2) != 0, (lines & 4) != 0, phases};
        const GridFit slow = search_grid(region, probe, least_stride, high, wanted);
        const GridFit fast = search_grid(region, folded, least_stride, high, wanted);
        EXPECT_EQ(fast.stride, slow.stride);
        EXPECT_EQ(fast.vertical, slow.vertical);
        EXPECT_EQ(fast.slash, slow.slash);
        EXPECT_DOUBLE_EQ(fast.gain, slow.gain);
      }
    }
  }
}

TEST(SearchClock, FindsWhatWorkCosts) {
  KINORA_FRESH_RANDOM(random);
  const std::array<double, 5> truth = {2e-9, 3e-8, 0, 1e-6, 4e-7};
  std::vector<PlanWork> samples;
  std::vector<double> seconds;
  for (int i = 0; i < 30; ++i) {
    const double tiles = random.uniform(10, 300), keys = tiles * random.uniform(200, 5000);
    samples.push_back({keys * random.uniform(16, 128), keys, keys * random.uniform(0, 1), tiles,
                       tiles * random.uniform(1, 400)});
    double total = 0;
    for (size_t t = 0; t < truth.size(); ++t) total += truth[t] * samples.back().terms()[t];
    seconds.push_back(total);
  }
  const auto factors = fit_work(samples, seconds);
  for (size_t i = 0; i < samples.size(); ++i) {
    double total = 0;
    for (size_t t = 0; t < truth.size(); ++t) {
      EXPECT_GE(factors[t], 0);
      total += factors[t] * samples[i].terms()[t];
    }
    EXPECT_NEAR(total, seconds[i], 0.02 * seconds[i]);
  }
}

TEST(SearchClock, CountsTheWorkOfAPlan) {
  Plan plan;
  plan.segments = {{0, 10, 1}, {5, 7, 3}, {0, 4, 0}};
  plan.tiles = {{.head = 0,
                 .heads = 2,
                 .query_begin = 0,
                 .query_end = 16,
                 .segment_begin = 0,
                 .segment_end = 2},
                {.head = 0,
                 .heads = 1,
                 .query_begin = 0,
                 .query_end = 3,
                 .segment_begin = 1,
                 .segment_end = 3}};
  const PlanWork work = work_of(plan);
  EXPECT_EQ(work.pairs, 17 * 32 + 11 * 3);
  EXPECT_EQ(work.keys, 17 + 11);
  EXPECT_EQ(work.scattered, 7 + 11);
  EXPECT_EQ(work.tiles, 2);
  EXPECT_EQ(work.segments, 4);
}

TEST(SearchClock, IsGivenOrMeasured) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Context context(pool);
  const Problem problem = make_problem(random, {.queries = 300, .head_size = 16});
  SearchOptions options;
  options.candidates = {parse_pattern("a-shape:sink=128,local=1024"),
                        parse_pattern("vertical-slash:verticals=1000,slashes=2048"),
                        parse_pattern("grid:sink=128,lines=vs")};
  const Region region = cut_regions(Boundary::none, problem.queries(), problem.memory()).front();
  const auto plan_of = [&](const char* text) {
    PlanBuilder builder(problem.queries(), problem.memory());
    add_line_tiles(builder, region, resolve(parse_pattern(text), region, {}), 0);
    return builder.take();
  };
  const Plan small = plan_of("a-shape:sink=8,local=16"), large = plan_of("dense");
  const SearchClock measured(context, problem.queries(), problem.memory(), problem.scale, 0,
                             options);
  EXPECT_GT(measured.plan(small, problem.queries(), problem.memory()), 0);
  EXPECT_GT(measured.plan(large, problem.queries(), problem.memory()),
            measured.plan(small, problem.queries(), problem.memory()));
  EXPECT_GT(measured.index(2, region), 0);
  options.cost = pairs_clock;
  const SearchClock given(context, problem.queries(), problem.memory(), problem.scale, 0, options);
  EXPECT_EQ(given.plan(large, problem.queries(), problem.memory()),
            pairs_clock(large, problem.queries(), problem.memory()));
  EXPECT_EQ(given.index(2, region), 0);
  EXPECT_EQ(given.counted(WorkTimer(context)), 0);
}

}  // namespace
}  // namespace kinora
