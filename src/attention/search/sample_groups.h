// The sample of a search as a session would read it, group by group, and the budget of a head over
// all of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/head_view.h"
#include "attention/plan/region.h"
#include "attention/search/search_cost.h"

namespace kinora {

struct SearchOptions;

struct SampleGroup {
  QueryView queries;
  RowSet rows;  // in memory by then

  CostCall call() const { return {queries.count(), rows.count()}; }
};

// Groups of `size` queries, counted from the end, so that the first one may be smaller. The last
// one has all rows.
std::vector<SampleGroup> cut_groups(const QueryView& queries, const RowSet& rows, int64_t size);

// Of one head, over all groups.
struct SampleBudget {
  double most = 0;         // that it may cost
  double dense = 0;        // that dense attention costs
  double dense_pairs = 0;  // of a query and a key, in dense attention
};

SampleBudget budget_of(std::span<const SampleGroup> groups, const SearchOptions& options,
                       const SearchCost& cost);

// What a plan that was made for the last group's part of a region comes to over all groups.
class Growth {
 public:
  // `earlier` and `last`: the region in the groups before and in the last one; `dense`: what
  // reading all of `last` costs.
  Growth(std::span<const Region* const> earlier, const Region& last, double dense);

  double dense_pairs() const { return pairs_; }
  double dense() const { return price_ * pairs_; }
  // Of a plan that costs `cost` in the last group. Windows, columns and single diagonals read a
  // number of keys, lines of a stride a share of them: of c keys that an earlier query may see it
  // reads min(c, a + b c).
  double whole(double cost, const LineIndex& index) const;
  // Of finding lines, in proportion to rows.
  double look(double cost) const { return look_ * cost; }

 private:
  std::vector<double> seen_;  // keys that earlier queries may see, of every `step_`-th one
  double step_ = 1;
  double queries_ = 0;  // of the last group
  double last_ = 0;     // pairs there
  double pairs_ = 0;    // of all groups
  double price_ = 0;    // of a pair
  double look_ = 1;
};

}  // namespace kinora
