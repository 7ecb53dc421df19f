// The search of one head: patterns fitted to the budget region by region, then boundaries. search.h
// runs it for all heads of a layer.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "attention/head_view.h"
#include "attention/search/region_race.h"
#include "attention/search/search.h"
#include "attention/search/search_clock.h"

namespace kinora {

// Computes what dense attention gives when it is made; all else may be asked from several threads,
// each with a context of its own.
class HeadSearch {
 public:
  // Views are copied; what they show, options, clock and weights must stay.
  HeadSearch(const Context& context, const HeadViews& head, float scale, double budget,
             const SearchOptions& options, const SearchClock& clock,
             std::span<const float> weights);

  // The best patterns with this boundary, and what they come to; without patterns: the input has
  // one modality, so that the boundary is the same as none.
  HeadChoice best_with(const Context& context, Boundary boundary) const;
  // The best of several boundaries, in order.
  HeadChoice best_of(std::span<const HeadChoice> choices) const;

  // The choice with what it comes to here.
  HeadChoice judged(const Context& context, HeadChoice choice) const;

 private:
  struct Tried;

  bool affordable(double seconds, double budget) const;
  bool better(const HeadChoice& choice, const HeadChoice& best) const;
  PatternSpec best_in(const Context& context, const Region& whole, Boundary boundary) const;
  void fit(PatternSpec spec, double index_seconds, const Region& region, const Probe& probe,
           double budget, bool window, std::vector<Tried>& tried) const;
  const HeadOutcome& full(const Region& region, bool by_key) const;
  Plan cut(const Context& context, HeadChoice& choice, const std::vector<Region>& regions) const;
  Plan plan(const Context& context, HeadChoice& choice, const std::vector<Region>& regions) const;
  void judge(const Context& context, HeadChoice& choice, const Plan& plan) const;
  bool needs_window(const Region& region, Boundary boundary) const;
  bool has_window(const LineIndex& index) const;
  double error_of(const HeadOutcome& actual) const;

  HeadViews head_;
  float scale_;
  double budget_;
  const SearchOptions& options_;
  const SearchClock& clock_;
  std::span<const float> weights_;
  HeadOutcome dense_;
  std::map<Modality, HeadOutcome> by_key_;  // from the keys of one modality alone
  double dense_pairs_ = 1;
};

}  // namespace kinora
