// What attention has to do, counted: the work of a plan once it is run, and that of finding its
// lines before. Costs (search_cost.h) are told from these counts alone, so that they are the same
// on every run and machine.
#pragma once

#include <array>

#include "attention/attention.h"
#include "attention/plan/plan.h"
#include "attention/plan/region.h"
#include "attention/policies/pattern.h"

namespace kinora {

// What running a plan takes.
struct PlanWork {
  double attended = 0;   // pairs of a query and a key that the query may see
  double pairs = 0;      // the same as tiles have them, queries × keys
  double keys = 0;       // read by tiles
  double scattered = 0;  // of them, those that do not lie one after the other
  double tiles = 0;
  double segments = 0;
  double longest = 0;  // keys of the longest tile

  // Those that take a CPU's time.
  static constexpr size_t term_count = 5;
  std::array<double, term_count> terms() const { return {pairs, keys, scattered, tiles, segments}; }
};

PlanWork work_of(const Plan& plan, const QueryView& queries, const RowSet& rows);

// What finding the lines of one region takes.
struct LookWork {
  double looks = 0;   // 1 where anything is looked at
  double pairs = 0;   // scores: queries that are looked at × rows
  double ranked = 0;  // columns and diagonals, the strongest of which are chosen
  double folded = 0;  // columns and diagonals that are added up by phase, for every stride

  static constexpr size_t term_count = 3;
  std::array<double, term_count> terms() const { return {pairs, ranked, folded}; }
};

LookWork look_of(const PatternSpec& spec, const Region& region, const Probe& probe);

}  // namespace kinora
