#include "attention/search/head_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "attention/plan/line_plan.h"
#include "attention/policies/pattern_attention.h"
#include "attention/policies/resolve_head_test_support.h"
#include "attention/search/grid_search.h"
#include "attention/search/sample_groups.h"
#include "attention/test_support.h"

namespace kinora {
namespace {

using testing::make_problem;
using testing::Problem;
using testing::resolve_head;

// The search as docs/methods/mminference.md has it, the slow way: every size of every candidate is
// run to the end, in double precision.
class SlowSearch {
 public:
  SlowSearch(const Context& context, const Problem& problem, const SearchOptions& options,
             std::span<const float> weights)
      : context_(context), problem_(problem), options_(options), weights_(weights) {
    for (int64_t end = problem.shape.queries; end > 0; end -= options.group_queries) {
      groups_.insert(groups_.begin(),
                     group(std::max<int64_t>(0, end - options.group_queries), end));
    }
    for (const Group& each : groups_) dense_cost_ += dense_pairs(1, each.queries, each.rows);
    budget_ = options.dense_share * static_cast<double>(dense_cost_);
    Region all = cut_regions(Boundary::none, last().queries, last().rows).front();
    LineIndex index;
    index.everything = true;
    dense_ = run(plan_of(last(), {all}, {index}));
  }

  HeadChoice choose() const {
    HeadChoice best;
    for (const Boundary boundary : options_.boundaries) {
      const auto regions = cut_regions(boundary, last().queries, last().rows);
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
      choice = at_the_budget(choice, regions);
      judge(choice, regions);
      const bool fits = within(choice.flops);
      const bool fitted = within(best.flops);
      if (best.patterns.empty() || (fits != fitted ? fits
                                    : fits         ? choice.error < best.error - same_error
                                                   : choice.flops < best.flops)) {
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
  // Queries that are read together, and what is in memory then.
  struct Group {
    int64_t begin = 0;
    QueryView queries;
    RowSet rows;
  };

  Group group(int64_t begin, int64_t end) const {
    Group one{begin, slice(problem_.queries(), begin, end - begin), problem_.memory()};
    if (end == problem_.shape.queries) return one;
    int64_t rows = 0;
    while (rows < problem_.rows() &&
           one.rows.ordinals[static_cast<size_t>(rows)] <= one.queries.ordinals.back()) {
      ++rows;
    }
    one.rows.keys = one.rows.keys.rows(0, rows);
    one.rows.values = one.rows.values.rows(0, rows);
    one.rows.ordinals = one.rows.ordinals.first(static_cast<size_t>(rows));
    one.rows.modalities = one.rows.modalities.first(static_cast<size_t>(rows));
    return one;
  }
  const Group& last() const { return groups_.back(); }
  bool within(double flops) const { return flops <= options_.dense_share * (1 + 1e-9); }

  // Sizes grow while there is some of the budget left, and are cut while there is not.
  HeadChoice at_the_budget(HeadChoice choice, const std::vector<Region>& regions) const {
    std::optional<HeadChoice> low, high;
    for (int step = 0; step < 8; ++step) {
      choice.flops = whole_cost(choice) / static_cast<double>(dense_cost_);
      const bool fits = within(choice.flops);
      (fits ? low : high) = choice;
      if (low && !options_.grow) break;
      if (fits && choice.flops > 0.85 * options_.dense_share) break;
      HeadChoice next = choice;
      const auto indexes = [&] { return resolved(next, regions); };
      for (size_t i = 0; i < next.patterns.size(); ++i) {
        PatternSpec& spec = next.patterns[i].spec;
        if (low && high) {
          spec = between(low->patterns[i].spec, high->patterns[i].spec);
        } else {
          resize(spec, 0.95 * options_.dense_share / choice.flops);
        }
      }
      for (size_t i = 0; !fits && i < regions.size(); ++i) {
        if (text_reads_text(regions[i], choice.boundary) && !window(indexes()[i])) {
          next.patterns[i].spec = choice.patterns[i].spec;
        }
      }
      bool changes = true;
      for (const auto* other : {&low, &high}) {
        if (*other && to_string(**other) == to_string(next)) changes = false;
      }
      if (!changes) break;
      choice = next;
    }
    return low ? *low : *high;
  }

  double whole_cost(const HeadChoice& choice) const {
    int64_t cost = 0;
    for (const Group& each : groups_) {
      const auto regions = cut_regions(choice.boundary, each.queries, each.rows);
      const Plan plan = plan_of(each, regions,
                                resolve_head(context_, choice, regions, each.queries, each.rows, 0,
                                             problem_.scale, problem_.rows()));
      cost += attended_pairs(plan, each.queries, each.rows);
    }
    return static_cast<double>(cost);
  }

  Plan plan_of(const Group& each, const std::vector<Region>& regions,
               const std::vector<LineIndex>& indexes) const {
    PlanBuilder builder(each.queries, each.rows);
    for (size_t i = 0; i < regions.size(); ++i) add_line_tiles(builder, regions[i], indexes[i], 0);
    return builder.take();
  }
  double cost(const Plan& plan) const {
    return static_cast<double>(attended_pairs(plan, last().queries, last().rows));
  }

  // Keys of a region that queries before the last group may see, one by one.
  std::vector<double> seen_before(const Region& region, Boundary boundary) const {
    std::vector<double> seen;
    for (int64_t q = 0; q < last().begin; ++q) {
      const auto query = static_cast<size_t>(q);
      if ((boundary == Boundary::query || boundary == Boundary::both) &&
          problem_.query_modalities[query] != region.query_modality) {
        continue;
      }
      double keys = 0;
      for (size_t row = 0; row < problem_.row_modalities.size(); ++row) {
        const bool here = (boundary != Boundary::key && boundary != Boundary::both) ||
                          problem_.row_modalities[row] == region.key_modality;
        if (here && problem_.memory().ordinals[row] <= problem_.queries().ordinals[query]) ++keys;
      }
      seen.push_back(keys);
    }
    return seen;
  }

  // What a plan for the last group comes to over all: windows read a number of keys, lines a share.
  double estimate(double here, double pairs, double queries, const LineIndex& index,
                  const std::vector<double>& seen) const {
    const double share = index.everything ? 1
                         : index.stride == 0
                             ? 0
                             : static_cast<double>(index.vertical.size() + index.slash.size() +
                                                   index.horizontal.size()) /
                                   index.stride;
    const double keys = here / queries, mean = pairs / queries;
    const double lines = std::min({1.0, share, keys / mean});
    double total = here;
    for (const double c : seen) total += std::min(c, keys - lines * mean + lines * c);
    return total;
  }

  Outcome run(const Plan& plan) const {
    const std::vector<uint8_t> mask = expand(plan, last().queries, last().rows, 0);
    const int64_t size = problem_.shape.head_size, rows = problem_.rows();
    Outcome outcome;
    for (int64_t q = 0; q < last().queries.count(); ++q) {
      std::vector<double> out(static_cast<size_t>(size));
      double sum = 0;
      for (int64_t row = 0; row < rows; ++row) {
        if (mask[static_cast<size_t>(q * rows + row)] == 0) continue;
        double score = 0;
        for (int64_t c = 0; c < size; ++c) {
          score += double{problem_.query_data[static_cast<size_t>((last().begin + q) * size + c)]} *
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
      return last().queries.modalities[static_cast<size_t>(query)] == Modality::text;
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
    const Plan all = plan_of(last(), {region}, {everything});
    const std::vector<double> seen = seen_before(region, boundary);
    const auto queries = static_cast<double>(region.queries.size());
    const auto all_pairs = static_cast<double>(attended_pairs(all, last().queries, last().rows));
    const double region_pairs = std::accumulate(seen.begin(), seen.end(), all_pairs);
    const double budget =
        budget_ * (region_pairs / static_cast<double>(dense_cost_) + options_.spare);
    if (region_pairs <= budget) return {};
    const Outcome full = run(all);
    const Probe probe = probe_region(context_, last().queries, last().rows, region, 0,
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
        const Plan plan = plan_of(last(), {region}, {index});
        const double whole = estimate(cost(plan), all_pairs, queries, index, seen);
        const bool fits = whole <= budget * (1 + 1e-9);
        const double measure = fits ? std::sqrt(apart(region, run(plan), full, shares)) : whole;
        if (fits != fitted ? fits : measure < least - (fits ? same : 0)) {
          best = spec;
          least = measure;
          fitted = fits;
        }
        if (fits && (!options_.grow || whole > 0.85 * budget)) break;
        (fits ? low : high) = spec;
        if (low && high) {
          if (!options_.grow) break;
          spec = between(*low, *high);
          if (spec == *low || spec == *high) break;
        } else if (!resize(spec, 0.95 * budget / whole)) {
          break;
        }
      }
      if (i == 0 && fitted) least = std::numeric_limits<double>::infinity();
    }
    return best;
  }

  std::vector<LineIndex> resolved(const HeadChoice& choice,
                                  const std::vector<Region>& regions) const {
    return resolve_head(context_, choice, regions, last().queries, last().rows, 0, problem_.scale,
                        problem_.rows());
  }

  void judge(HeadChoice& choice, const std::vector<Region>& regions) const {
    const Outcome outcome = run(plan_of(last(), regions, resolved(choice, regions)));
    const Region all = cut_regions(Boundary::none, last().queries, last().rows).front();
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
  const SearchOptions& options_;
  std::span<const float> weights_;
  std::vector<Group> groups_;
  int64_t dense_cost_ = 0;
  double budget_ = 0;
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
  for (const int64_t groups : {1, 3}) {
    for (const double share : {0.15, 0.35, 0.6}) {
      const Problem problem = lively_problem(random, 150 + random.below(60), random.below(120), 13);
      given.dense_share = share;
      given.group_queries = groups == 1 ? 2048 : 70;
      const SearchOptions options = with_candidates(given);
      std::vector<float> weights;
      for (int64_t i = 0; i < std::min(given.group_queries, problem.shape.queries); ++i) {
        weights.push_back(static_cast<float>(random.uniform(0.1, 2.0)));
      }
      const HeadChoice slow = SlowSearch(context, problem, options, weights).choose();
      const HeadChoice fast = search_head(context, problem.queries(), problem.memory(),
                                          problem.scale, 0, given, weights);
      EXPECT_EQ(to_string(fast), to_string(slow)) << groups << " " << share;
      EXPECT_NEAR(fast.error, slow.error, 1e-4);
      EXPECT_NEAR(fast.recall, slow.recall, 1e-4);
      EXPECT_NEAR(fast.flops, slow.flops, 1e-12);
    }
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

}  // namespace
}  // namespace kinora
