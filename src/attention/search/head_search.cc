// The search of one head (search.h): patterns fitted to the budget region by region, then
// boundaries.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "attention/head_view.h"
#include "attention/plan/line_plan.h"
#include "attention/policies/dense.h"
#include "attention/policies/pattern_attention.h"
#include "attention/policies/sparse_attention.h"
#include "attention/runner.h"
#include "attention/search/search.h"

namespace kinora {
namespace {

constexpr int fit_steps = 8;
constexpr double well_used = 0.85;   // of the budget: no more growing
constexpr double aim = 0.95;         // of the budget, when sizes change
constexpr double hopeless = 1.5;     // times the budget: not worth a second run
constexpr int32_t text_window = 64;  // nearest tokens that text always reads

// Seconds that work takes. On a single thread only its own time counts, so that other programs on
// the machine do not; with several it is the clock's.
class WorkTimer {
 public:
  explicit WorkTimer(const Context& context)
      : clock_(context.threads->threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC),
        start_(now()) {}
  double seconds() const { return now() - start_; }

 private:
  double now() const {
    timespec time{};
    clock_gettime(clock_, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  clockid_t clock_;
  double start_;
};

// What a plan gives for every query of the head.
struct Outcome {
  Tensor out;                   // [count, 1, d]
  std::vector<float> log_sums;  // [count]
  double seconds = 0;
  bool window = true;  // the nearest rows are read
};

class HeadSearch {
 public:
  HeadSearch(const Context& context, const HeadViews& head, float scale, double budget,
             const SearchOptions& options, std::span<const float> weights)
      : context_(context),
        head_(head),
        scale_(scale),
        budget_(budget),
        options_(options),
        weights_(weights) {
    dense_ = run(dense_plan(head_.queries, head_.rows));
    dense_pairs_ = static_cast<double>(dense_pairs(1, head_.queries, head_.rows));
  }

  // The choice with what it comes to here.
  HeadChoice judged(HeadChoice choice) const {
    judge(choice, cut_regions(choice.boundary, head_.queries, head_.rows));
    return choice;
  }

  HeadChoice choose() const {
    HeadChoice best;
    best.error = std::numeric_limits<double>::infinity();
    for (const Boundary boundary : options_.boundaries) {
      const std::vector<Region> regions = cut_regions(boundary, head_.queries, head_.rows);
      // With a single modality every boundary is the same as none.
      if (boundary != Boundary::none && regions.size() < 2) continue;
      HeadChoice choice;
      choice.boundary = boundary;
      const bool by_query = boundary == Boundary::query || boundary == Boundary::both;
      const bool by_key = boundary == Boundary::key || boundary == Boundary::both;
      for (const Region& region : regions) {
        RegionPattern pattern;
        if (by_query) pattern.query = region.query_modality;
        if (by_key) pattern.key = region.key_modality;
        pattern.spec = best_in(region, boundary);
        choice.patterns.push_back(pattern);
      }
      judge(choice, regions);
      cut(choice, regions);
      if (better(choice, best)) best = choice;
    }
    return best;
  }

 private:
  bool affordable(double seconds, double budget) const {
    return seconds <= budget * options_.slack;
  }

  // What can be afforded before what cannot; then the smaller error, or else the smaller excess.
  bool better(const HeadChoice& choice, const HeadChoice& best) const {
    if (best.patterns.empty()) return true;
    const bool now = affordable(choice.seconds, budget_);
    if (now != affordable(best.seconds, budget_)) return now;
    return now ? choice.error < best.error : choice.seconds < best.seconds;
  }

  // Regions that fit one by one can be too much together.
  void cut(HeadChoice& choice, const std::vector<Region>& regions) const {
    for (int step = 0; step < fit_steps && !affordable(choice.seconds, budget_); ++step) {
      HeadChoice smaller = choice;
      for (RegionPattern& pattern : smaller.patterns) {
        resize(pattern.spec, aim * budget_ / choice.seconds);
      }
      const auto indexes = resolve_head(context_, smaller, regions, head_.queries, head_.rows, 0,
                                        scale_, head_.rows.count());
      for (size_t i = 0; i < regions.size(); ++i) {
        if (needs_window(regions[i], choice.boundary) && !has_window(indexes[i])) {
          smaller.patterns[i].spec = choice.patterns[i].spec;
        }
      }
      judge(smaller, regions);
      if (smaller.seconds >= choice.seconds) break;
      choice = std::move(smaller);
    }
  }

  // However small the budget, words see the words just before them.
  bool needs_window(const Region& region, Boundary boundary) const {
    const bool by_key = boundary == Boundary::key || boundary == Boundary::both;
    if (by_key && region.key_modality != Modality::text) return false;
    return std::any_of(region.queries.begin(), region.queries.end(), [&](int32_t query) {
      return head_.queries.modalities[static_cast<size_t>(query)] == Modality::text;
    });
  }
  bool has_window(const LineIndex& index) const {
    const auto least = std::max<int64_t>(
        1, text_window * std::min(head_.rows.count(), nominal_length) / nominal_length);
    if (index.everything || index.local >= least) return true;
    const auto last = static_cast<size_t>(least) - 1;  // distances 0, 1, … are all there
    return index.slashes.size() > last && index.slashes[last] == static_cast<int32_t>(last);
  }

  // What a plan took, or is said to take.
  double seconds_of(const Plan& plan, const WorkTimer& watch) const {
    return options_.cost ? options_.cost(plan, head_.queries, head_.rows) : watch.seconds();
  }

  Outcome run(const Plan& plan) const {
    options_.cancel.check();
    const auto count = static_cast<size_t>(head_.queries.count());
    Outcome outcome{Tensor(DType::f32, head_.queries.queries.shape()), {}, 0};
    std::vector<float> max(count), sum(count);
    const WorkTimer watch(context_);
    run_plan(context_, plan, head_.queries, head_.rows, scale_, outcome.out,
             {.state = {max.data(), sum.data()}});
    outcome.seconds = seconds_of(plan, watch);
    for (size_t i = 0; i < count; ++i) max[i] += std::log(sum[i]);
    outcome.log_sums = std::move(max);
    return outcome;
  }

  // The last queries of a region and what looking at them costs; looked at once for all candidates.
  struct TimedProbe {
    Probe probe;
    double seconds = 0;
  };

  TimedProbe look(const Region& region) const {
    const WorkTimer watch(context_);
    TimedProbe timed{probe_region(context_, head_.queries, head_.rows, region, 0, scale_,
                                  ProbeOf::each_modality),
                     0};
    if (!options_.cost) timed.seconds = watch.seconds();
    return timed;
  }

  // One pattern in one region, index included; the fastest of a few runs unless it is hopeless.
  Outcome run_region(const PatternSpec& spec, const Region& region, const TimedProbe& timed,
                     double budget) const {
    Outcome best;
    for (int i = 0; i < options_.repeats; ++i) {
      const WorkTimer watch(context_);
      PlanBuilder builder(head_.queries, head_.rows);
      const LineIndex index = resolve(spec, region, timed.probe);
      add_line_tiles(builder, region, index, 0);
      const Plan plan = builder.take();
      Outcome outcome = run(plan);
      outcome.window = has_window(index);
      outcome.seconds = seconds_of(plan, watch) + (spec.kind->needs_probe ? timed.seconds : 0);
      if (i == 0 || outcome.seconds < best.seconds) best = std::move(outcome);
      if (best.seconds <= budget || best.seconds > hopeless * budget) break;
    }
    return best;
  }

  // ‖sparse part − true part‖² over the region's queries. Where other regions hold further keys of
  // the same queries (`weighted`), a part counts with its share of the query's attention.
  double gap(const Region& region, const Outcome& actual, const Outcome& expected,
             bool weighted) const {
    double total = 0;
    const int64_t size = head_.queries.queries.size(2);
    for (const int32_t query : region.queries) {
      const auto at = static_cast<size_t>(query);
      const auto share = [&](const Outcome& outcome) {
        return weighted ? std::exp(static_cast<double>(outcome.log_sums[at]) -
                                   static_cast<double>(dense_.log_sums[at]))
                        : 1.0;
      };
      const double a = share(actual);
      const double e = share(expected);
      const float* x = actual.out.data<float>() + query * size;
      const float* y = expected.out.data<float>() + query * size;
      double squares = 0;
      for (int64_t c = 0; c < size; ++c) {
        const double difference = a * static_cast<double>(x[c]) - e * static_cast<double>(y[c]);
        squares += difference * difference;
      }
      total += weight(at) * squares;
    }
    return total;
  }

  double weight(size_t query) const {
    return weights_.empty() ? 1.0 : static_cast<double>(weights_[query]);
  }

  // ‖actual − dense‖ / ‖dense‖, by weight.
  double error_of(const Outcome& actual) const {
    double difference = 0, total = 0;
    const int64_t size = head_.queries.queries.size(2);
    for (int64_t query = 0; query < head_.queries.count(); ++query) {
      const float* x = actual.out.data<float>() + query * size;
      const float* y = dense_.out.data<float>() + query * size;
      double apart = 0, squares = 0;
      for (int64_t c = 0; c < size; ++c) {
        apart += std::pow(static_cast<double>(x[c]) - static_cast<double>(y[c]), 2);
        squares += std::pow(static_cast<double>(y[c]), 2);
      }
      difference += weight(static_cast<size_t>(query)) * apart;
      total += weight(static_cast<size_t>(query)) * squares;
    }
    return total > 0 ? std::sqrt(difference / total) : 0;
  }

  PatternSpec best_in(const Region& whole, Boundary boundary) const {
    const bool weighted = boundary == Boundary::key || boundary == Boundary::both;
    const bool window = needs_window(whole, boundary);
    Region region = whole;
    region.pass = 0;  // it is run alone here
    PlanBuilder builder(head_.queries, head_.rows);
    LineIndex everything;
    everything.everything = true;
    add_line_tiles(builder, region, everything, 0);
    const Plan plan = builder.take();
    const double share =
        static_cast<double>(attended_pairs(plan, head_.queries, head_.rows)) / dense_pairs_;
    const double budget = budget_ * (share + options_.spare);
    const Outcome full = run(plan);
    if (full.seconds <= budget) return {};  // nothing can be closer than everything

    const TimedProbe timed = look(region);
    // Where no candidate fits, a small A-shape does, or else whatever comes nearest.
    Fitted best = fit(options_.budget, region, timed, budget, full, weighted, window);
    best.error = std::numeric_limits<double>::infinity();
    for (const PatternSpec& spec : options_.candidates) {
      if (spec.kind == &dense_pattern()) continue;
      const Fitted fitted = fit(spec, region, timed, budget, full, weighted, window);
      if (fitted.better_than(best)) best = fitted;
    }
    return best.spec;
  }

  struct Fitted {
    PatternSpec spec;
    bool fits = false;  // within the budget
    double error = std::numeric_limits<double>::infinity();
    double seconds = std::numeric_limits<double>::infinity();

    bool better_than(const Fitted& other) const {
      if (fits != other.fits) return fits;
      return fits ? error < other.error : seconds < other.seconds;
    }
  };

  // Brings a candidate to the budget: sizes grow while there is time left and are cut while there
  // is not, so that all candidates are compared at about one cost.
  Fitted fit(PatternSpec spec, const Region& region, const TimedProbe& timed, double budget,
             const Outcome& full, bool weighted, bool window) const {
    Fitted best{spec};
    std::optional<PatternSpec> low, high;  // the largest that fits, the smallest that does not
    for (int step = 0; step < fit_steps; ++step) {
      const Outcome outcome = run_region(scaled(spec, head_.rows.count()), region, timed, budget);
      if (window && !outcome.window) break;
      const Fitted tried{spec, affordable(outcome.seconds, budget),
                         gap(region, outcome, full, weighted), outcome.seconds};
      if (tried.better_than(best)) best = tried;
      if (tried.fits && (!options_.grow || outcome.seconds > well_used * budget)) break;
      (tried.fits ? low : high) = spec;
      if (low && high) {  // cost is not quite in proportion to size: halve the distance
        if (!options_.grow) break;
        spec = between(*low, *high);
        if (spec == *low || spec == *high) break;
      } else if (!resize(spec, aim * budget / outcome.seconds)) {
        break;
      }
    }
    return best;
  }

  void judge(HeadChoice& choice, const std::vector<Region>& regions) const {
    for (int i = 0; i < options_.repeats; ++i) {
      const WorkTimer watch(context_);
      const auto indexes = resolve_head(context_, choice, regions, head_.queries, head_.rows, 0,
                                        scale_, head_.rows.count());
      PlanBuilder builder(head_.queries, head_.rows);
      for (size_t r = 0; r < regions.size(); ++r) {
        add_line_tiles(builder, regions[r], indexes[r], 0);
      }
      const Plan plan = builder.take();
      const Outcome outcome = run(plan);
      const double seconds = seconds_of(plan, watch);
      if (i == 0 || seconds < choice.seconds) choice.seconds = seconds;
      choice.error = error_of(outcome);
      double mass = 0;
      for (size_t q = 0; q < outcome.log_sums.size(); ++q) {
        mass += std::exp(static_cast<double>(outcome.log_sums[q]) -
                         static_cast<double>(dense_.log_sums[q]));
      }
      choice.recall = mass / static_cast<double>(outcome.log_sums.size());
    }
  }

  const Context& context_;
  const HeadViews& head_;
  float scale_;
  double budget_;
  const SearchOptions& options_;
  std::span<const float> weights_;
  Outcome dense_;
  double dense_pairs_ = 1;
};

}  // namespace

double measure_budget(const Context& context, const QueryView& queries, const RowSet& rows,
                      float scale, int head, const SearchOptions& options) {
  const HeadViews views = view_head(queries, rows, head);
  const std::vector<Region> regions = cut_regions(Boundary::none, views.queries, views.rows);
  const bool by_share = options.dense_share > 0;
  const PatternSpec spec = by_share ? PatternSpec{} : scaled(options.budget, rows.count());
  Tensor out(DType::f32, views.queries.queries.shape());
  double best = 0;
  for (int i = 0; i < std::max(2, options.repeats); ++i) {
    const WorkTimer watch(context);
    PlanBuilder builder(views.queries, views.rows);
    add_line_tiles(builder, regions.front(), resolve(spec, regions.front(), {}), 0);
    const Plan plan = builder.take();
    run_plan(context, plan, views.queries, views.rows, scale, out);
    const double seconds =
        options.cost ? options.cost(plan, views.queries, views.rows) : watch.seconds();
    if (i == 0 || seconds < best) best = seconds;
  }
  return by_share ? options.dense_share * best : best;
}

HeadChoice search_head(const Context& context, const QueryView& queries, const RowSet& rows,
                       float scale, int head, double budget_seconds, const SearchOptions& given,
                       std::span<const float> weights) {
  if (queries.count() < SparseOptions().least_queries) check_sample(queries, rows);
  SearchOptions options = given;
  if (options.candidates.empty()) options.candidates = search_space(options.frame_stride);
  if (options.grow) options.candidates = distinct_at_one_cost(options.candidates);
  const HeadViews views = view_head(queries, rows, head);
  return HeadSearch(context, views, scale, budget_seconds, options, weights).choose();
}

HeadChoice judge_head(const Context& context, const QueryView& queries, const RowSet& rows,
                      float scale, int head, const HeadChoice& choice, const SearchOptions& options,
                      std::span<const float> weights) {
  const HeadViews views = view_head(queries, rows, head);
  return HeadSearch(context, views, scale, 0, options, weights).judged(choice);
}

}  // namespace kinora
