#include "attention/search/search.h"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>

#include "attention/head_view.h"
#include "attention/plan/line_plan.h"
#include "attention/policies/dense.h"
#include "attention/policies/pattern_attention.h"
#include "attention/policies/sparse_attention.h"
#include "attention/runner.h"
#include "attention/search/metrics.h"
#include "base/error.h"

namespace kinora {
namespace {

constexpr int fit_steps = 5;
constexpr double well_used = 0.85;  // of the limit: no more growing
constexpr double aim = 0.95;        // of the limit, when sizes change
constexpr double hopeless = 1.5;    // times the limit: not worth a second run

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
};

class HeadSearch {
 public:
  HeadSearch(const Context& context, const HeadViews& head, float scale, double budget,
             const SearchOptions& options)
      : context_(context), head_(head), scale_(scale), budget_(budget), options_(options) {
    dense_ = run(dense_plan(head_.queries, head_.rows));
    dense_pairs_ = static_cast<double>(dense_pairs(1, head_.queries, head_.rows));
  }

  HeadChoice choose() {
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
        pattern.spec = best_in(region, by_key);
        choice.patterns.push_back(pattern);
      }
      judge(choice, regions);
      const bool affordable = choice.seconds <= budget_ * options_.slack;
      if (choice.error < best.error && (affordable || best.patterns.empty())) best = choice;
    }
    return best;
  }

 private:
  Outcome run(const Plan& plan) const {
    options_.cancel.check();
    const auto count = static_cast<size_t>(head_.queries.count());
    Outcome outcome{Tensor(DType::f32, head_.queries.queries.shape()), {}, 0};
    std::vector<float> max(count), sum(count);
    const WorkTimer watch(context_);
    run_plan(context_, plan, head_.queries, head_.rows, scale_, outcome.out,
             {.state = {max.data(), sum.data()}});
    outcome.seconds = watch.seconds();
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
    TimedProbe timed{probe_region(context_, head_.queries, head_.rows, region, 0, scale_), 0};
    timed.seconds = watch.seconds();
    return timed;
  }

  // One pattern in one region, index included; the fastest of a few runs unless it is hopeless.
  Outcome run_region(const PatternSpec& spec, const Region& region, const TimedProbe& timed,
                     double limit) const {
    Outcome best;
    for (int i = 0; i < options_.repeats; ++i) {
      const WorkTimer watch(context_);
      PlanBuilder builder(head_.queries, head_.rows);
      add_line_tiles(builder, region, resolve(spec, region, timed.probe), 0);
      Outcome outcome = run(builder.take());
      outcome.seconds = watch.seconds() + (spec.kind->needs_probe ? timed.seconds : 0);
      if (i == 0 || outcome.seconds < best.seconds) best = std::move(outcome);
      if (best.seconds <= limit || best.seconds > hopeless * limit) break;
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
      for (int64_t c = 0; c < size; ++c) {
        const double difference = a * static_cast<double>(x[c]) - e * static_cast<double>(y[c]);
        total += difference * difference;
      }
    }
    return total;
  }

  PatternSpec best_in(const Region& whole, bool weighted) const {
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
    const double limit = budget * options_.slack;
    Fitted best{options_.budget, std::numeric_limits<double>::infinity()};
    for (const PatternSpec& spec : options_.candidates) {
      if (spec.kind == &dense_pattern()) continue;
      const Fitted fitted = fit(spec, region, timed, limit, full, weighted);
      if (fitted.error < best.error) best = fitted;
    }
    return best.spec;
  }

  struct Fitted {
    PatternSpec spec;
    double error = std::numeric_limits<double>::infinity();  // infinite: never within the limit
  };

  // Brings a candidate to the limit: sizes grow while there is time left and are cut while there is
  // not, so that all candidates are compared at about one cost.
  Fitted fit(PatternSpec spec, const Region& region, const TimedProbe& timed, double limit,
             const Outcome& full, bool weighted) const {
    Fitted best{spec};
    for (int step = 0; step < fit_steps; ++step) {
      const Outcome outcome = run_region(scaled(spec, head_.rows.count()), region, timed, limit);
      const bool fits = outcome.seconds <= limit;
      const bool fitted = std::isfinite(best.error);
      if (fits) {
        const double error = gap(region, outcome, full, weighted);
        if (error < best.error) best = {spec, error};
      }
      if (fitted && !fits) break;  // it had grown too far
      if (fits && (!options_.grow || outcome.seconds > well_used * limit)) break;
      if (!resize(spec, aim * limit / outcome.seconds)) break;
    }
    return best;
  }

  void judge(HeadChoice& choice, const std::vector<Region>& regions) const {
    for (int i = 0; i < options_.repeats; ++i) {
      const WorkTimer watch(context_);
      const auto indexes =
          resolve_head(context_, choice, regions, head_.queries, head_.rows, 0, scale_);
      PlanBuilder builder(head_.queries, head_.rows);
      for (size_t r = 0; r < regions.size(); ++r) {
        add_line_tiles(builder, regions[r], indexes[r], 0);
      }
      const Outcome outcome = run(builder.take());
      const double seconds = watch.seconds();
      if (i == 0 || seconds < choice.seconds) choice.seconds = seconds;
      choice.error = output_error(outcome.out.view(), dense_.out.view(), 0);
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
  Outcome dense_;
  double dense_pairs_ = 1;
};

}  // namespace

std::vector<PatternSpec> distinct_at_one_cost(const std::vector<PatternSpec>& candidates) {
  std::vector<PatternSpec> distinct;
  for (const PatternSpec& candidate : candidates) {
    PatternSpec spec = at_one_cost(candidate);
    if (std::find(distinct.begin(), distinct.end(), spec) == distinct.end()) {
      distinct.push_back(std::move(spec));
    }
  }
  return distinct;
}

std::vector<PatternSpec> search_space(int32_t frame_stride) {
  std::vector<PatternSpec> space;
  for (const PatternKind* kind : pattern_kinds()) {
    if (!kind->candidates) continue;
    for (SizeValues& sizes : kind->candidates(frame_stride)) {
      space.push_back(make_pattern(*kind, std::move(sizes)));
    }
  }
  return space;
}

void check_sample(const QueryView& queries, const RowSet& rows) {
  if (queries.count() < 2 * SparseAttention::least_queries) {
    throw Error(ErrorKind::usage,
                fmt::format("the sample has {} tokens; a search needs at least {}", queries.count(),
                            2 * SparseAttention::least_queries));
  }
  const std::set<Modality> asked(queries.modalities.begin(), queries.modalities.end());
  for (const Modality modality : rows.modalities) {
    if (!asked.contains(modality)) {
      throw Error(ErrorKind::usage,
                  fmt::format("the sample has {} tokens in memory and none among its queries; "
                              "prefill it as one group",
                              modality_name(modality)));
    }
  }
}

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
    run_plan(context, builder.take(), views.queries, views.rows, scale, out);
    if (i == 0 || watch.seconds() < best) best = watch.seconds();
  }
  return by_share ? options.dense_share * best : best;
}

HeadChoice search_head(const Context& context, const QueryView& queries, const RowSet& rows,
                       float scale, int head, double budget_seconds, const SearchOptions& given) {
  if (queries.count() < SparseAttention::least_queries) check_sample(queries, rows);
  SearchOptions options = given;
  if (options.candidates.empty()) options.candidates = search_space(options.frame_stride);
  if (options.grow) options.candidates = distinct_at_one_cost(options.candidates);
  const HeadViews views = view_head(queries, rows, head);
  return HeadSearch(context, views, scale, budget_seconds, options).choose();
}

void PatternSearch::see(const Context& context, const AttentionCall& call) {
  const int layer = call.layer;
  const auto heads = static_cast<int>(call.queries.queries.size(1));
  if (table_.shape.heads == 0) {
    table_.shape.heads = heads;
    table_.heads.resize(static_cast<size_t>(heads) * static_cast<size_t>(table_.shape.layers));
  }
  if (table_.shape.heads != heads || layer >= table_.shape.layers) {
    throw Error(ErrorKind::bad_input, "the attention table has another shape than the model");
  }
  std::vector<int> missing;
  for (int head = 0; head < heads; ++head) {
    if (!table_.at(layer, head)) missing.push_back(head);
  }
  if (missing.empty()) return;
  const HostCall host(call);
  const QueryView& queries = host.queries();
  const RowSet& rows = host.rows();
  // Only what will be sparse is searched, and only as many queries as a session reads at a time:
  // patterns look at the last queries of their group.
  const int64_t sparse = queries.count() - last_text(queries, default_dense_last);
  check_sample(slice(queries, 0, sparse), rows);
  const int64_t count = std::min(sparse, options_.group_queries);
  const QueryView searched = slice(queries, sparse - count, count);
  const ThreadPool single(1);
  const Context alone(single);
  if (table_.budget_seconds == 0) {
    table_.budget_seconds =
        measure_budget(alone, searched, rows, call.scale, missing.front(), options_);
    table_.sample_tokens = queries.count();
  }
  // Every head on a thread of its own, so that times do not depend on how tiles fall on threads.
  std::mutex mutex;
  context.threads->parallel_for(
      static_cast<int64_t>(missing.size()), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int head = missing[static_cast<size_t>(i)];
          const ThreadPool one(1);
          HeadChoice choice = search_head(Context(one), searched, rows, call.scale, head,
                                          table_.budget_seconds, options_);
          const std::lock_guard lock(mutex);
          table_.at(layer, head) = std::move(choice);
          if (found_) found_(layer, head, *table_.at(layer, head));
        }
      });
}

}  // namespace kinora
