// Which of many patterns comes closest to dense attention in one region: patterns are run a few
// tiles at a time, and one that has already missed more than the best so far is run no further.
// The result is the same as if all had been run to the end.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "attention/head_view.h"
#include "attention/plan/line_plan.h"
#include "attention/plan/region.h"

namespace kinora {

// What a plan gives for every query of a head.
struct HeadOutcome {
  Tensor out;                   // [count, 1, d]
  std::vector<float> log_sums;  // [count]
};

HeadOutcome run_head(const Context& context, const Plan& plan, const HeadViews& head, float scale);

// Relative errors that differ by no more are the same: results of f32 differ by their order, and
// what is chosen must not depend on that.
inline constexpr double same_error = 1e-5;

class RegionRace {
 public:
  // `full`: what all keys of the region give. Where other regions hold further keys of the same
  // queries, `dense_log_sums` are those over all keys, and a part counts with its share of the
  // query's attention; else empty. `weights`: how much each query counts; empty: all the same.
  RegionRace(const Context& context, const HeadViews& head, float scale, const Region& region,
             const HeadOutcome& full, std::span<const float> dense_log_sums,
             std::span<const float> weights);

  // ‖sparse part − true part‖² over the region's queries, by weight; none: it is more than `most`.
  std::optional<double> gap(const LineIndex& index, double most) const {
    return gap(index, most, {}, nullptr);
  }

  // A pattern in the race. Those of one `family` are one pattern in several sizes, the largest
  // last.
  struct Entrant {
    LineIndex index;
    int family = 0;
  };

  // The place of the entrant with the smallest gap; the first of those whose errors are the same.
  size_t closest(std::span<const Entrant> entrants) const;

 private:
  class Runner;  // one pattern, a few tiles at a time

  // `hard`: where a gap is to be expected, one for each of the head's queries; such tiles are run
  // first. Empty: tiles from all over the region.
  std::optional<double> gap(const LineIndex& index, double most, std::span<const double> hard,
                            std::vector<double>* gaps) const;

  // ‖true part‖ over the region's queries, by weight.
  double norm() const;
  double share(const HeadOutcome& outcome, size_t query) const;
  double weight(size_t query) const;

  const Context& context_;
  const HeadViews& head_;
  float scale_;
  const Region& region_;
  const HeadOutcome& full_;
  std::span<const float> dense_log_sums_;
  std::span<const float> weights_;
};

}  // namespace kinora
