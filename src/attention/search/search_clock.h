// What plans cost, without running them: the runner's time as a sum over pairs, keys, tiles and
// segments, fitted once to a few plans that are run and timed. The search of patterns asks for
// thousands of plans and runs only those that it wants to see the output of.
#pragma once

#include <time.h>

#include <array>
#include <functional>
#include <vector>

#include "attention/attention.h"
#include "attention/plan/plan.h"
#include "attention/plan/region.h"

namespace kinora {

struct SearchOptions;

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

// What a plan makes the runner do.
struct PlanWork {
  double pairs = 0;      // queries × keys of every tile
  double keys = 0;       // read by tiles
  double scattered = 0;  // of them, those that do not lie one after the other
  double tiles = 0;
  double segments = 0;

  std::array<double, 5> terms() const { return {pairs, keys, scattered, tiles, segments}; }
};

PlanWork work_of(const Plan& plan);

// Factors ≥ 0 with which the terms of every sample add up to its seconds, as nearly as they can, by
// relative error.
std::array<double, 5> fit_work(const std::vector<PlanWork>& samples,
                               const std::vector<double>& seconds);

class SearchClock {
 public:
  // Times plans and indexes of the candidates on one head, unless `options.cost` says what plans
  // cost: indexes then cost nothing.
  SearchClock(const Context& context, const QueryView& queries, const RowSet& rows, float scale,
              int head, const SearchOptions& options);

  // Building and running a plan.
  double plan(const Plan& plan, const QueryView& queries, const RowSet& rows) const;
  // Looking at the last queries of a region and finding a candidate's lines there.
  double index(size_t candidate, const Region& region) const;
  // What a measured piece of work counts for.
  double counted(const WorkTimer& watch) const { return given_ ? 0 : watch.seconds(); }

 private:
  std::function<double(const Plan&, const QueryView&, const RowSet&)> given_;
  std::array<double, 5> factors_{};
  std::vector<double> index_seconds_;  // [candidates], for all rows
  double rows_ = 1;
};

}  // namespace kinora
