#include "attention/search/search_clock.h"

#include <algorithm>
#include <cmath>

#include "attention/head_view.h"
#include "attention/plan/line_plan.h"
#include "attention/policies/pattern.h"
#include "attention/runner.h"
#include "attention/search/probe.h"
#include "attention/search/search.h"

namespace kinora {
namespace {

constexpr size_t timed_candidates = 9;  // whose plans are run, each in two sizes
constexpr double larger = 3;            // times as much in the second
constexpr int rounds = 3000;            // of the fit; each costs next to nothing

}  // namespace

PlanWork work_of(const Plan& plan) {
  PlanWork work;
  for (const Tile& tile : plan.tiles) {
    int64_t keys = 0, scattered = 0;
    for (int64_t i = tile.segment_begin; i < tile.segment_end; ++i) {
      const Segment& segment = plan.segments[static_cast<size_t>(i)];
      keys += segment.count;
      if (segment.stride != 1) scattered += segment.count;
    }
    work.pairs += static_cast<double>(keys * tile.queries() * tile.heads);
    work.keys += static_cast<double>(keys);
    work.scattered += static_cast<double>(scattered);
    work.tiles += 1;
    work.segments += static_cast<double>(tile.segment_end - tile.segment_begin);
  }
  return work;
}

std::array<double, 5> fit_work(const std::vector<PlanWork>& samples,
                               const std::vector<double>& seconds) {
  // Minimises Σ (Σ f·x / y − 1)² one factor at a time; each minimum is cut off at 0.
  std::vector<std::array<double, 5>> scaled;
  for (size_t i = 0; i < samples.size(); ++i) {
    scaled.push_back(samples[i].terms());
    for (double& term : scaled.back()) term /= std::max(seconds[i], 1e-12);
  }
  std::array<double, 5> factors{};
  for (int round = 0; round < rounds; ++round) {
    for (size_t f = 0; f < factors.size(); ++f) {
      double along = 0, squares = 0;
      for (const auto& terms : scaled) {
        double rest = 1;
        for (size_t g = 0; g < factors.size(); ++g) rest -= g == f ? 0 : factors[g] * terms[g];
        along += rest * terms[f];
        squares += terms[f] * terms[f];
      }
      factors[f] = squares > 0 ? std::max(0.0, along / squares) : 0;
    }
  }
  return factors;
}

SearchClock::SearchClock(const Context& context, const QueryView& queries, const RowSet& rows,
                         float scale, int head, const SearchOptions& options)
    : given_(options.cost), rows_(static_cast<double>(rows.count())) {
  index_seconds_.resize(options.candidates.size());
  if (given_) return;
  const HeadViews views = view_head(queries, rows, head);
  const Region region = cut_regions(Boundary::none, views.queries, views.rows).front();
  Tensor out(DType::f32, views.queries.queries.shape());
  std::vector<PlanWork> samples;
  std::vector<double> times;
  Probe probe;
  const auto time_plan = [&](const PatternSpec& spec) {
    options.cancel.check();
    const LineIndex index = resolve(scaled(spec, rows.count()), region, probe);
    double fastest = 0;
    for (int i = 0; i < std::max(2, options.repeats); ++i) {
      const WorkTimer watch(context);
      PlanBuilder builder(views.queries, views.rows);
      add_line_tiles(builder, region, index, 0);
      const Plan plan = builder.take();
      run_plan(context, plan, views.queries, views.rows, scale, out);
      const double seconds = watch.seconds();
      if (i == 0) samples.push_back(work_of(plan));
      if (i == 0 || seconds < fastest) fastest = seconds;
    }
    times.push_back(fastest);
  };
  time_plan({});
  time_plan(options.budget);
  const size_t count = options.candidates.size();
  for (size_t i = 0; i < count; ++i) {
    const PatternSpec& spec = options.candidates[i];
    const WorkTimer watch(context);
    if (spec.kind->needs_probe) {
      probe = probe_region(context, views.queries, views.rows, region, 0, scale,
                           ProbeOf::each_modality);
    }
    resolve(scaled(spec, rows.count()), region, probe);
    index_seconds_[i] = watch.seconds();
    // Those that are run are spread over the list.
    if (i * timed_candidates / count == (i + 1) * timed_candidates / count && i + 1 != count) {
      continue;
    }
    time_plan(spec);
    if (PatternSpec more = spec; resize(more, larger)) time_plan(more);
  }
  factors_ = fit_work(samples, times);
}

double SearchClock::plan(const Plan& plan, const QueryView& queries, const RowSet& rows) const {
  if (given_) return given_(plan, queries, rows);
  const auto terms = work_of(plan).terms();
  double seconds = 0;
  for (size_t i = 0; i < terms.size(); ++i) seconds += factors_[i] * terms[i];
  return seconds;
}

double SearchClock::index(size_t candidate, const Region& region) const {
  return index_seconds_[candidate] * static_cast<double>(region.row_count()) / rows_;
}

}  // namespace kinora
