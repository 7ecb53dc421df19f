#include "attention/search/head_search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/plan/line_plan.h"
#include "attention/policies/dense.h"
#include "attention/policies/pattern_attention.h"
#include "attention/policies/sparse_attention.h"
#include "attention/search/grid_search.h"

namespace kinora {
namespace {

constexpr int fit_steps = 8;
constexpr double well_used = 0.85;   // of the budget: no more growing
constexpr double aim = 0.95;         // of the budget, when sizes change
constexpr int32_t text_window = 64;  // nearest tokens that text always reads

bool cuts_keys(Boundary boundary) {
  return boundary == Boundary::key || boundary == Boundary::both;
}
bool cuts_queries(Boundary boundary) {
  return boundary == Boundary::query || boundary == Boundary::both;
}

LineIndex everything() {
  LineIndex index;
  index.everything = true;
  return index;
}

}  // namespace

// A pattern at one of the sizes that were tried, and its lines.
struct HeadSearch::Tried {
  PatternSpec spec;
  LineIndex index;
  bool fits = false;  // within the budget
  double seconds = 0;
  int candidate = 0;
};

HeadSearch::HeadSearch(const Context& context, const HeadViews& head, float scale, double budget,
                       const SearchOptions& options, const SearchClock& clock,
                       std::span<const float> weights)
    : head_(head),
      scale_(scale),
      budget_(budget),
      options_(options),
      clock_(clock),
      weights_(weights),
      dense_(run_head(context, dense_plan(head.queries, head.rows), head, scale)),
      dense_pairs_(static_cast<double>(dense_pairs(1, head.queries, head.rows))) {
  if (std::none_of(options.boundaries.begin(), options.boundaries.end(), cuts_keys)) return;
  for (Region& region : cut_regions(Boundary::key, head_.queries, head_.rows)) {
    options_.cancel.check();
    region.pass = 0;
    PlanBuilder builder(head_.queries, head_.rows);
    add_line_tiles(builder, region, everything(), 0);
    by_key_.emplace(region.key_modality, run_head(context, builder.take(), head_, scale_));
  }
}

HeadChoice HeadSearch::judged(const Context& context, HeadChoice choice) const {
  const Plan plan =
      this->plan(context, choice, cut_regions(choice.boundary, head_.queries, head_.rows));
  judge(context, choice, plan);
  return choice;
}

HeadChoice HeadSearch::best_with(const Context& context, Boundary boundary) const {
  HeadChoice choice;
  choice.boundary = boundary;
  const std::vector<Region> regions = cut_regions(boundary, head_.queries, head_.rows);
  if (boundary != Boundary::none && regions.size() < 2) return choice;
  for (const Region& region : regions) {
    RegionPattern pattern;
    if (cuts_queries(boundary)) pattern.query = region.query_modality;
    if (cuts_keys(boundary)) pattern.key = region.key_modality;
    pattern.spec = best_in(context, region, boundary);
    choice.patterns.push_back(pattern);
  }
  const Plan plan = cut(context, choice, regions);
  judge(context, choice, plan);
  return choice;
}

HeadChoice HeadSearch::best_of(std::span<const HeadChoice> choices) const {
  HeadChoice best;
  best.error = std::numeric_limits<double>::infinity();
  for (const HeadChoice& choice : choices) {
    if (!choice.patterns.empty() && better(choice, best)) best = choice;
  }
  return best;
}

bool HeadSearch::affordable(double seconds, double budget) const {
  return seconds <= budget * options_.slack;
}

// What can be afforded before what cannot; then the smaller error, or else the smaller excess.
bool HeadSearch::better(const HeadChoice& choice, const HeadChoice& best) const {
  if (best.patterns.empty()) return true;
  const bool now = affordable(choice.seconds, budget_);
  if (now != affordable(best.seconds, budget_)) return now;
  return now ? choice.error < best.error - same_error : choice.seconds < best.seconds;
}

// Regions that fit one by one can be too much together.
Plan HeadSearch::cut(const Context& context, HeadChoice& choice,
                     const std::vector<Region>& regions) const {
  Plan plan = this->plan(context, choice, regions);
  for (int step = 0; step < fit_steps && !affordable(choice.seconds, budget_); ++step) {
    HeadChoice smaller = choice;
    for (RegionPattern& pattern : smaller.patterns) {
      resize(pattern.spec, aim * budget_ / choice.seconds);
    }
    const auto indexes = resolve_head(context, smaller, regions, head_.queries, head_.rows, 0,
                                      scale_, head_.rows.count());
    for (size_t i = 0; i < regions.size(); ++i) {
      if (needs_window(regions[i], choice.boundary) && !has_window(indexes[i])) {
        smaller.patterns[i].spec = choice.patterns[i].spec;
      }
    }
    Plan less = this->plan(context, smaller, regions);
    if (smaller.seconds >= choice.seconds) break;
    choice = std::move(smaller);
    plan = std::move(less);
  }
  return plan;
}

// However small the budget, words see the words just before them.
bool HeadSearch::needs_window(const Region& region, Boundary boundary) const {
  if (cuts_keys(boundary) && region.key_modality != Modality::text) return false;
  return std::any_of(region.queries.begin(), region.queries.end(), [&](int32_t query) {
    return head_.queries.modalities[static_cast<size_t>(query)] == Modality::text;
  });
}

bool HeadSearch::has_window(const LineIndex& index) const {
  const auto least = std::max<int64_t>(
      1, text_window * std::min(head_.rows.count(), nominal_length) / nominal_length);
  if (index.everything || index.local >= least) return true;
  const auto last = static_cast<size_t>(least) - 1;  // distances 0, 1, … are all there
  return index.slashes.size() > last && index.slashes[last] == static_cast<int32_t>(last);
}

// ‖actual − dense‖ / ‖dense‖, by weight.
double HeadSearch::error_of(const HeadOutcome& actual) const {
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
    const double weight =
        weights_.empty() ? 1.0 : static_cast<double>(weights_[static_cast<size_t>(query)]);
    difference += weight * apart;
    total += weight * squares;
  }
  return total > 0 ? std::sqrt(difference / total) : 0;
}

const HeadOutcome& HeadSearch::full(const Region& region, bool by_key) const {
  return by_key ? by_key_.at(region.key_modality) : dense_;
}

PatternSpec HeadSearch::best_in(const Context& context, const Region& whole,
                                Boundary boundary) const {
  options_.cancel.check();
  Region region = whole;
  region.pass = 0;  // it is run alone here
  PlanBuilder builder(head_.queries, head_.rows);
  add_line_tiles(builder, region, everything(), 0);
  const Plan all = builder.take();
  const double share =
      static_cast<double>(attended_pairs(all, head_.queries, head_.rows)) / dense_pairs_;
  const double budget = budget_ * (share + options_.spare);
  // Nothing can be closer than everything.
  if (clock_.plan(all, head_.queries, head_.rows) <= budget) return {};

  Probe probe =
      probe_region(context, head_.queries, head_.rows, region, 0, scale_, ProbeOf::each_modality);
  probe.folds = fold_grids(region, probe);
  const bool window = needs_window(whole, boundary);
  std::vector<Tried> tried;
  for (size_t i = 0; i < options_.candidates.size(); ++i) {
    if (options_.candidates[i].kind == &dense_pattern()) continue;
    options_.cancel.check();
    const size_t before = tried.size();
    fit(options_.candidates[i], clock_.index(i, region), region, probe, budget, window, tried);
    for (size_t t = before; t < tried.size(); ++t) tried[t].candidate = static_cast<int>(i);
  }
  const auto fits = [](const Tried& t) { return t.fits; };
  if (std::none_of(tried.begin(), tried.end(), fits)) {
    // A small A-shape does, or else whatever comes nearest.
    std::vector<Tried> last;
    fit(options_.budget, 0, region, probe, budget, window, last);
    if (std::any_of(last.begin(), last.end(), fits)) {
      tried = std::move(last);
    } else {
      tried.insert(tried.begin(), last.begin(), last.end());
      const auto cheapest =
          std::min_element(tried.begin(), tried.end(),
                           [](const Tried& a, const Tried& b) { return a.seconds < b.seconds; });
      return cheapest == tried.end() ? options_.budget : cheapest->spec;
    }
  }
  std::vector<PatternSpec> specs;
  std::vector<RegionRace::Entrant> entrants;
  for (Tried& one : tried) {
    const auto same = [&](const RegionRace::Entrant& other) { return other.index == one.index; };
    if (!one.fits || std::any_of(entrants.begin(), entrants.end(), same)) continue;
    specs.push_back(std::move(one.spec));
    entrants.push_back({std::move(one.index), one.candidate});
  }
  const bool by_key = cuts_keys(boundary);
  const RegionRace race(context, head_, scale_, region, full(region, by_key),
                        by_key ? std::span<const float>(dense_.log_sums) : std::span<const float>(),
                        weights_);
  return specs[race.closest(entrants)];
}

// Brings a candidate to the budget: sizes grow while there is time left and are cut while there is
// not, so that all candidates are compared at about one cost.
void HeadSearch::fit(PatternSpec spec, double index_seconds, const Region& region,
                     const Probe& probe, double budget, bool window,
                     std::vector<Tried>& tried) const {
  std::optional<PatternSpec> low, high;  // the largest that fits, the smallest that does not
  for (int step = 0; step < fit_steps; ++step) {
    LineIndex index = resolve(scaled(spec, head_.rows.count()), region, probe);
    if (window && !has_window(index)) break;
    PlanBuilder builder(head_.queries, head_.rows);
    add_line_tiles(builder, region, index, 0);
    const double seconds = clock_.plan(builder.take(), head_.queries, head_.rows) + index_seconds;
    const bool fits = affordable(seconds, budget);
    tried.push_back({spec, std::move(index), fits, seconds});
    if (fits && (!options_.grow || seconds > well_used * budget)) break;
    (fits ? low : high) = spec;
    if (low && high) {  // cost is not quite in proportion to size: halve the distance
      if (!options_.grow) break;
      spec = between(*low, *high);
      if (spec == *low || spec == *high) break;
    } else if (!resize(spec, aim * budget / seconds)) {
      break;
    }
  }
}

// The plan of a choice; its seconds are set.
Plan HeadSearch::plan(const Context& context, HeadChoice& choice,
                      const std::vector<Region>& regions) const {
  options_.cancel.check();
  const WorkTimer watch(context);
  const auto indexes = resolve_head(context, choice, regions, head_.queries, head_.rows, 0, scale_,
                                    head_.rows.count());
  choice.seconds = clock_.counted(watch);
  PlanBuilder builder(head_.queries, head_.rows);
  for (size_t r = 0; r < regions.size(); ++r) add_line_tiles(builder, regions[r], indexes[r], 0);
  Plan plan = builder.take();
  choice.seconds += clock_.plan(plan, head_.queries, head_.rows);
  return plan;
}

void HeadSearch::judge(const Context& context, HeadChoice& choice, const Plan& plan) const {
  const HeadOutcome outcome = run_head(context, plan, head_, scale_);
  choice.error = error_of(outcome);
  double mass = 0;
  for (size_t q = 0; q < outcome.log_sums.size(); ++q) {
    mass += std::exp(static_cast<double>(outcome.log_sums[q]) -
                     static_cast<double>(dense_.log_sums[q]));
  }
  choice.recall = mass / static_cast<double>(outcome.log_sums.size());
}

double measure_budget(const SearchClock& clock, const QueryView& queries, const RowSet& rows,
                      int head, const SearchOptions& options) {
  const HeadViews views = view_head(queries, rows, head);
  const Region region = cut_regions(Boundary::none, views.queries, views.rows).front();
  const bool by_share = options.dense_share > 0;
  const PatternSpec spec = by_share ? PatternSpec{} : scaled(options.budget, rows.count());
  PlanBuilder builder(views.queries, views.rows);
  add_line_tiles(builder, region, resolve(spec, region, {}), 0);
  const double seconds = clock.plan(builder.take(), views.queries, views.rows);
  return by_share ? options.dense_share * seconds : seconds;
}

HeadChoice search_head(const Context& context, const QueryView& queries, const RowSet& rows,
                       float scale, int head, double budget_seconds, const SearchOptions& given,
                       std::span<const float> weights) {
  if (queries.count() < SparseOptions().least_queries) check_sample(queries, rows);
  const SearchOptions options = with_candidates(given);
  const SearchClock clock(context, queries, rows, scale, head, options);
  const HeadSearch search(context, view_head(queries, rows, head), scale, budget_seconds, options,
                          clock, weights);
  std::vector<HeadChoice> choices;
  for (const Boundary boundary : options.boundaries) {
    choices.push_back(search.best_with(context, boundary));
  }
  return search.best_of(choices);
}

}  // namespace kinora
