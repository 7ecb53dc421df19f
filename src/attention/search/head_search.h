// The search of one head: patterns fitted to the budget region by region, then boundaries. search.h
// runs it for all heads of a layer.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "attention/head_view.h"
#include "attention/search/region_race.h"
#include "attention/search/sample_groups.h"
#include "attention/search/search.h"
#include "attention/search/search_cost.h"

namespace kinora {

// A choice with what it comes to on the sample; without patterns: there is none.
struct JudgedChoice {
  HeadChoice choice;
  double cost = 0;  // relative to the budget; at most 1 keeps it
};

// Computes what dense attention gives when it is made; all else may be asked from several threads,
// each with a context of its own.
class HeadSearch {
 public:
  // Errors are those of the last group, costs those of all. Views are copied; what they show,
  // options, costs and weights must stay.
  HeadSearch(const Context& context, std::span<const SampleGroup> groups, int head, float scale,
             const SampleBudget& budget, const SearchOptions& options, const SearchCost& cost,
             std::span<const float> weights);

  // The best patterns with this boundary, and what they come to; without patterns: the input has
  // one modality, so that the boundary is the same as none.
  JudgedChoice best_with(const Context& context, Boundary boundary) const;
  // The best of several boundaries, in order.
  HeadChoice best_of(std::span<const JudgedChoice> choices) const;

  // The choice with what it comes to here.
  JudgedChoice judged(const Context& context, HeadChoice choice) const;

 private:
  struct Part;
  struct Layout;
  struct Spent;
  struct Tried;

  int64_t length() const { return head_.rows.count(); }
  Layout lay_out(Boundary boundary) const;
  bool affordable(double cost, double budget) const;
  bool better(const JudgedChoice& choice, const JudgedChoice& best) const;
  PatternSpec best_in(const Context& context, Layout& layout, size_t place) const;
  void fit(PatternSpec spec, const Part& part, const Probe& probe, const Growth& growth,
           double budget, bool window, std::vector<Tried>& tried) const;
  const HeadOutcome& full(const Region& region, bool by_key) const;
  Spent spent(const Context& context, const HeadChoice& choice, Layout& layout) const;
  void note(JudgedChoice& judged, const Spent& spent) const;
  JudgedChoice bring(const Context& context, HeadChoice choice, Layout& layout) const;
  LineIndex index_of(const Context& context, const PatternSpec& scaled, Part& part) const;
  void judge(const Context& context, HeadChoice& choice, Layout& layout) const;
  bool text_asks(const Region& region) const;
  bool may_compete(const PatternKind& kind, const Region& region) const;
  bool needs_window(const Region& region, Boundary boundary) const;
  bool has_window(const LineIndex& index) const;
  double error_of(const HeadOutcome& actual) const;

  std::vector<HeadViews> groups_;
  const HeadViews& head_;  // of the last group
  float scale_;
  SampleBudget budget_;
  const SearchOptions& options_;
  const SearchCost& cost_;
  SearchCost times_;          // what is reported besides
  double dense_seconds_ = 0;  // of these
  std::span<const float> weights_;
  HeadOutcome dense_;
  std::map<Modality, HeadOutcome> by_key_;  // from the keys of one modality alone
};

}  // namespace kinora
