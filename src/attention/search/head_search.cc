#include "attention/search/head_search.h"

#include <algorithm>
#include <cmath>

#include "attention/plan/line_plan.h"
#include "attention/policies/dense.h"
#include "attention/policies/sparse_attention.h"
#include "attention/search/grid_search.h"

namespace kinora {
namespace {

constexpr int fit_steps = 8;
constexpr double well_used = 0.85;   // of the budget: no more growing
constexpr double aim = 0.95;         // of the budget, when sizes change
constexpr int32_t text_window = 64;  // nearest tokens that text always reads
constexpr double rounding = 1e-9;    // of costs, which are sums in different orders

bool cuts_keys(Boundary boundary) {
  return boundary == Boundary::key || boundary == Boundary::both;
}
bool cuts_queries(Boundary boundary) {
  return boundary == Boundary::query || boundary == Boundary::both;
}

std::vector<HeadViews> views_of(std::span<const SampleGroup> groups, int head) {
  std::vector<HeadViews> views;
  for (const SampleGroup& group : groups) {
    views.push_back(view_head(group.queries, group.rows, head));
  }
  return views;
}

// Its lines are whatever the last queries find strongest; those of others lie where a distance or a
// stride puts them.
bool follows_queries(const PatternKind& kind) { return kind.strongest != nullptr; }

LineIndex everything() {
  LineIndex index;
  index.everything = true;
  return index;
}

}  // namespace

// One region in one group.
struct HeadSearch::Part {
  Region region;
  const HeadViews* views = nullptr;
  CostCall call{};
  std::optional<Probe> probe{};  // once somebody needs it
};

// What a boundary cuts the sample into: regions of every group, as the session will have them.
struct HeadSearch::Layout {
  Boundary boundary = Boundary::none;
  std::vector<std::vector<Part>> groups{};
};

// What a choice costs over all groups.
struct HeadSearch::Spent {
  double cost = 0;
  double pairs = 0;
  double look_pairs = 0;
  double seconds = 0;
};

// A pattern at one of the sizes that were tried, and its lines.
struct HeadSearch::Tried {
  PatternSpec spec;
  LineIndex index;
  bool fits = false;  // within the budget
  double cost = 0;
  int candidate = 0;
};

HeadSearch::HeadSearch(const Context& context, std::span<const SampleGroup> groups, int head,
                       float scale, const SampleBudget& budget, const SearchOptions& options,
                       const SearchCost& cost, std::span<const float> weights)
    : groups_(views_of(groups, head)),
      head_(groups_.back()),
      scale_(scale),
      budget_(budget),
      options_(options),
      cost_(cost),
      times_(cost.unit() == CostUnit::flops ? cost.with(CostUnit::cpu) : cost),
      weights_(weights),
      dense_(run_head(context, dense_plan(head_.queries, head_.rows), head_, scale)) {
  for (const SampleGroup& group : groups) {
    const HeadViews& views = groups_[static_cast<size_t>(&group - groups.data())];
    const PlanWork work = work_of(dense_plan(views.queries, views.rows), views.queries, views.rows);
    dense_seconds_ += times_.dense(work, group.call());
  }
  if (std::none_of(options.boundaries.begin(), options.boundaries.end(), cuts_keys)) return;
  for (Region& region : cut_regions(Boundary::key, head_.queries, head_.rows)) {
    options_.cancel.check();
    region.pass = 0;
    PlanBuilder builder(head_.queries, head_.rows);
    add_line_tiles(builder, region, everything(), 0);
    by_key_.emplace(region.key_modality, run_head(context, builder.take(), head_, scale_));
  }
}

HeadSearch::Layout HeadSearch::lay_out(Boundary boundary) const {
  Layout layout{boundary};
  for (const HeadViews& views : groups_) {
    std::vector<Part>& parts = layout.groups.emplace_back();
    for (Region& region : cut_regions(boundary, views.queries, views.rows)) {
      parts.push_back({std::move(region), &views, {views.queries.count(), views.rows.count()}});
    }
  }
  return layout;
}

JudgedChoice HeadSearch::judged(const Context& context, HeadChoice choice) const {
  Layout layout = lay_out(choice.boundary);
  JudgedChoice judged{std::move(choice)};
  note(judged, spent(context, judged.choice, layout));
  judge(context, judged.choice, layout);
  return judged;
}

JudgedChoice HeadSearch::best_with(const Context& context, Boundary boundary) const {
  HeadChoice choice;
  choice.boundary = boundary;
  Layout layout = lay_out(boundary);
  const std::vector<Part>& parts = layout.groups.back();
  if (boundary != Boundary::none && parts.size() < 2) return {};
  for (size_t i = 0; i < parts.size(); ++i) {
    RegionPattern pattern;
    if (cuts_queries(boundary)) pattern.query = parts[i].region.query_modality;
    if (cuts_keys(boundary)) pattern.key = parts[i].region.key_modality;
    pattern.spec = best_in(context, layout, i);
    choice.patterns.push_back(pattern);
  }
  JudgedChoice judged = bring(context, std::move(choice), layout);
  judge(context, judged.choice, layout);
  return judged;
}

HeadChoice HeadSearch::best_of(std::span<const JudgedChoice> choices) const {
  JudgedChoice best;
  for (const JudgedChoice& choice : choices) {
    if (!choice.choice.patterns.empty() && better(choice, best)) best = choice;
  }
  return best.choice;
}

bool HeadSearch::affordable(double cost, double budget) const {
  return cost <= budget * (1 + rounding);
}

// What can be afforded before what cannot; then the smaller error, or else the smaller excess.
bool HeadSearch::better(const JudgedChoice& choice, const JudgedChoice& best) const {
  if (best.choice.patterns.empty()) return true;
  const bool now = affordable(choice.cost, 1);
  if (now != affordable(best.cost, 1)) return now;
  return now ? choice.choice.error < best.choice.error - same_error : choice.cost < best.cost;
}

LineIndex HeadSearch::index_of(const Context& context, const PatternSpec& scaled,
                               Part& part) const {
  if (scaled.kind->needs_probe && !part.probe) {
    part.probe = probe_region(context, part.views->queries, part.views->rows, part.region, 0,
                              scale_, ProbeOf::each_modality);
  }
  return resolve(scaled, part.region, part.probe ? *part.probe : Probe{});
}

HeadSearch::Spent HeadSearch::spent(const Context& context, const HeadChoice& choice,
                                    Layout& layout) const {
  Spent all;
  for (std::vector<Part>& parts : layout.groups) {
    options_.cancel.check();
    for (Part& part : parts) {
      const PatternSpec spec = scaled(pattern_for(choice, part.region), length());
      const LineIndex index = index_of(context, spec, part);
      PlanBuilder builder(part.views->queries, part.views->rows);
      add_line_tiles(builder, part.region, index, 0, 1, cost_.slash_queries());
      const PlanWork work = work_of(builder.take(), part.views->queries, part.views->rows);
      const LookWork look = part.probe ? look_of(spec, part.region, *part.probe) : LookWork{};
      all.cost += cost_.run(work, part.call) + cost_.look(look, part.call);
      all.seconds += times_.run(work, part.call) + times_.look(look, part.call);
      all.pairs += work.attended;
      all.look_pairs += look_pairs(look);
    }
  }
  return all;
}

void HeadSearch::note(JudgedChoice& judged, const Spent& spent) const {
  judged.cost = spent.cost / budget_.most;
  judged.choice.flops = spent.pairs / budget_.dense_pairs;
  judged.choice.index = spent.look_pairs / budget_.dense_pairs;
  judged.choice.time = spent.seconds / dense_seconds_;
}

// The choice at the budget. Regions that fit one by one can be too much together, and what one
// leaves over the others may use.
JudgedChoice HeadSearch::bring(const Context& context, HeadChoice choice, Layout& layout) const {
  struct Step {
    HeadChoice choice;
    Spent spent;
  };
  std::optional<Step> low, high;  // the largest that fits, the smallest that does not
  std::vector<Part>& parts = layout.groups.back();
  for (int step = 0; step < fit_steps; ++step) {
    const Spent spent = this->spent(context, choice, layout);
    const bool fits = affordable(spent.cost, budget_.most);
    (fits ? low : high) = Step{choice, spent};
    if (fits && (!options_.grow || spent.cost > well_used * budget_.most)) break;
    if (low && !options_.grow) break;
    HeadChoice next = choice;
    for (size_t i = 0; i < next.patterns.size(); ++i) {
      PatternSpec& spec = next.patterns[i].spec;
      if (low && high) {
        spec = between(low->choice.patterns[i].spec, high->choice.patterns[i].spec);
      } else {
        resize(spec, aim * budget_.most / spent.cost);
      }
      if (fits || !needs_window(parts[i].region, choice.boundary)) continue;
      if (!has_window(index_of(context, scaled(spec, length()), parts[i]))) {
        spec = choice.patterns[i].spec;
      }
    }
    const auto same = [&](const HeadChoice& other) {
      return std::equal(
          next.patterns.begin(), next.patterns.end(), other.patterns.begin(),
          [](const RegionPattern& a, const RegionPattern& b) { return a.spec == b.spec; });
    };
    if ((low && same(low->choice)) || (high && same(high->choice))) break;
    choice = std::move(next);
  }
  Step& best = low ? *low : *high;
  JudgedChoice brought{std::move(best.choice)};
  note(brought, best.spent);
  return brought;
}

bool HeadSearch::text_asks(const Region& region) const {
  return std::any_of(region.queries.begin(), region.queries.end(), [&](int32_t query) {
    return head_.queries.modalities[static_cast<size_t>(query)] == Modality::text;
  });
}

// A question that is searched will be sparse, and the next one asks for something else. The error
// of one question does not tell what another misses between the lines of a grid or beyond a window,
// so where text asks, keys must be those that the queries at hand attend to.
bool HeadSearch::may_compete(const PatternKind& kind, const Region& region) const {
  if (&kind == &dense_pattern()) return false;
  return options_.dense_last > 0 || follows_queries(kind) || !text_asks(region);
}

// However small the budget, words see the words just before them.
bool HeadSearch::needs_window(const Region& region, Boundary boundary) const {
  if (cuts_keys(boundary) && region.key_modality != Modality::text) return false;
  return text_asks(region);
}

bool HeadSearch::has_window(const LineIndex& index) const {
  const auto least =
      std::max<int64_t>(1, text_window * std::min(length(), nominal_length) / nominal_length);
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

PatternSpec HeadSearch::best_in(const Context& context, Layout& layout, size_t place) const {
  options_.cancel.check();
  Part& part = layout.groups.back()[place];
  Region region = part.region;
  region.pass = 0;  // it is run alone here
  PlanBuilder builder(head_.queries, head_.rows);
  add_line_tiles(builder, region, everything(), 0);
  const Plan all = builder.take();
  std::vector<const Region*> earlier;
  for (size_t g = 0; g + 1 < layout.groups.size(); ++g) {
    for (const Part& other : layout.groups[g]) {
      if (other.region.query_modality == region.query_modality &&
          other.region.key_modality == region.key_modality) {
        earlier.push_back(&other.region);
      }
    }
  }
  const Growth growth(earlier, region,
                      cost_.run(work_of(all, head_.queries, head_.rows), part.call));
  const double budget =
      budget_.most * (growth.dense_pairs() / budget_.dense_pairs + options_.spare);
  // Nothing can be closer than everything.
  if (affordable(growth.dense(), budget)) return {};

  part.probe =
      probe_region(context, head_.queries, head_.rows, region, 0, scale_, ProbeOf::each_modality);
  Probe probe = *part.probe;
  probe.folds = fold_grids(region, probe);
  const bool window = needs_window(region, layout.boundary);
  std::vector<Tried> tried;
  for (size_t i = 0; i < options_.candidates.size(); ++i) {
    if (!may_compete(*options_.candidates[i].kind, region)) continue;
    options_.cancel.check();
    const size_t before = tried.size();
    fit(options_.candidates[i], part, probe, growth, budget, window, tried);
    for (size_t t = before; t < tried.size(); ++t) tried[t].candidate = static_cast<int>(i);
  }
  const auto fits = [](const Tried& t) { return t.fits; };
  if (std::none_of(tried.begin(), tried.end(), fits)) {
    // A small A-shape does, or else whatever comes nearest.
    std::vector<Tried> last;
    fit(options_.budget, part, probe, growth, budget, window, last);
    if (std::any_of(last.begin(), last.end(), fits)) {
      tried = std::move(last);
    } else {
      tried.insert(tried.begin(), last.begin(), last.end());
      const auto cheapest =
          std::min_element(tried.begin(), tried.end(),
                           [](const Tried& a, const Tried& b) { return a.cost < b.cost; });
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
  const bool by_key = cuts_keys(layout.boundary);
  const RegionRace race(context, head_, scale_, region, full(region, by_key),
                        by_key ? std::span<const float>(dense_.log_sums) : std::span<const float>(),
                        weights_);
  return specs[race.closest(entrants)];
}

// Brings a candidate to the budget: sizes grow while there is some of it left and are cut while
// there is not, so that all candidates are compared at about one cost.
void HeadSearch::fit(PatternSpec spec, const Part& part, const Probe& probe, const Growth& growth,
                     double budget, bool window, std::vector<Tried>& tried) const {
  std::optional<PatternSpec> low, high;  // the largest that fits, the smallest that does not
  for (int step = 0; step < fit_steps; ++step) {
    const PatternSpec here = scaled(spec, length());
    LineIndex index = resolve(here, part.region, probe);
    if (window && !has_window(index)) break;
    PlanBuilder builder(head_.queries, head_.rows);
    add_line_tiles(builder, part.region, index, 0, 1, cost_.slash_queries());
    const PlanWork work = work_of(builder.take(), head_.queries, head_.rows);
    const double cost = growth.whole(cost_.run(work, part.call), index) +
                        growth.look(cost_.look(look_of(here, part.region, probe), part.call));
    const bool fits = affordable(cost, budget);
    tried.push_back({spec, std::move(index), fits, cost});
    if (fits && (!options_.grow || cost > well_used * budget)) break;
    (fits ? low : high) = spec;
    if (low && high) {  // cost is not quite in proportion to size: halve the distance
      if (!options_.grow) break;
      spec = between(*low, *high);
      if (spec == *low || spec == *high) break;
    } else if (!resize(spec, aim * budget / cost)) {
      break;
    }
  }
}

void HeadSearch::judge(const Context& context, HeadChoice& choice, Layout& layout) const {
  PlanBuilder builder(head_.queries, head_.rows);
  for (Part& part : layout.groups.back()) {
    const PatternSpec spec = scaled(pattern_for(choice, part.region), length());
    add_line_tiles(builder, part.region, index_of(context, spec, part), 0);
  }
  const HeadOutcome outcome = run_head(context, builder.take(), head_, scale_);
  choice.error = error_of(outcome);
  double mass = 0;
  for (size_t q = 0; q < outcome.log_sums.size(); ++q) {
    mass += std::exp(static_cast<double>(outcome.log_sums[q]) -
                     static_cast<double>(dense_.log_sums[q]));
  }
  choice.recall = mass / static_cast<double>(outcome.log_sums.size());
}

HeadChoice search_head(const Context& context, const QueryView& queries, const RowSet& rows,
                       float scale, int head, const SearchOptions& given,
                       std::span<const float> weights) {
  if (queries.count() < SparseOptions().least_queries) check_sample(queries, rows);
  const SearchOptions options = with_candidates(given);
  const std::vector<SampleGroup> groups = cut_groups(queries, rows, options.group_queries);
  const SearchCost cost(options.unit, queries.queries.size(1), queries.queries.size(2));
  const HeadSearch search(context, groups, head, scale, budget_of(groups, options, cost), options,
                          cost, weights);
  std::vector<JudgedChoice> choices;
  for (const Boundary boundary : options.boundaries) {
    choices.push_back(search.best_with(context, boundary));
  }
  return search.best_of(choices);
}

}  // namespace kinora
