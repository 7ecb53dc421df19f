// What the search holds to its budget: the cost of a plan, told from what is counted in it
// (plan_work.h) and never from a clock. The same sample, budget and program therefore give the same
// table, whatever else the machine does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attention/search/plan_work.h"

namespace kinora {

// flops: pairs of a query and a key, as `kinora eval` counts them and the paper's budget is given;
// finding lines is not in it. cpu, gpu: the time that a processor takes, finding lines included.
enum class CostUnit : uint8_t { flops, cpu, gpu };

std::vector<std::string> cost_unit_names();
std::string cost_unit_name(CostUnit unit);
// "dense attention's FLOPs", "dense attention's time on a CPU", for reports.
std::string_view cost_unit_text(std::string_view name);
CostUnit parse_cost_unit(std::string_view name);  // throws a usage error

// One call of attention: a group of queries and the rows they read.
struct CostCall {
  int64_t queries = 0;
  int64_t rows = 0;
};

class SearchCost {
 public:
  // Of a model's layer. A GPU runs all heads at once, so one head's time depends on their number.
  SearchCost(CostUnit unit, int64_t heads, int64_t head_size)
      : unit_(unit), heads_(heads), head_size_(head_size) {}

  CostUnit unit() const { return unit_; }
  SearchCost with(CostUnit unit) const { return {unit, heads_, head_size_}; }
  // The height of tiles with slashes where such plans run.
  int64_t slash_queries() const;

  // Running one head's plan in one region, and finding its lines: pairs, or seconds on the
  // processor that the constants were measured on.
  double run(const PlanWork& work, const CostCall& call) const;
  // Dense attention, whose plan makes this work.
  double dense(const PlanWork& work, const CostCall& call) const;
  double look(const LookWork& work, const CostCall& call) const;

 private:
  CostUnit unit_;
  int64_t heads_;
  int64_t head_size_;
};

// What looking takes in pairs: a score is half of what a pair takes that is attended to.
inline double look_pairs(const LookWork& work) { return work.pairs / 2; }

}  // namespace kinora
