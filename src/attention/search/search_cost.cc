#include "attention/search/search_cost.h"

#include <algorithm>
#include <array>

#include "attention/plan/line_plan.h"
#include "attention/policies/gpu_cost.h"
#include "base/error.h"
#include "base/policy/names.h"

namespace kinora {
namespace {

struct Unit {
  CostUnit unit;
  std::string_view name;
  std::string_view text;
};
constexpr std::array units = {
    Unit{CostUnit::flops, "flops", "dense attention's FLOPs"},
    Unit{CostUnit::cpu, "cpu", "dense attention's time on a CPU"},
    Unit{CostUnit::gpu, "gpu", "dense attention's time on a GPU"},
};

// Nanoseconds of one thread for each unit of work, for heads of 64 and of 128 columns. Measured by
// bench/attention's bench_plan_cost on a CPU with AVX-512 (docs/results/speed-cpu.md); other CPUs
// are faster or slower, but what is compared with a budget is the ratio to dense attention.
struct CpuRates {
  double columns;  // of a head
  std::array<double, PlanWork::term_count> run;
  std::array<double, LookWork::term_count> look;
};
constexpr CpuRates narrow = {64, {2.22, 51, 30, 2450, 0}, {2.79, 39, 0.212}};
constexpr CpuRates wide = {128, {3.69, 119, 44, 0, 0}, {4.00, 15, 0.191}};

// Rates are linear in the width of a head, and never below 0.
template <size_t N>
double seconds(const std::array<double, N>& terms, const std::array<double, N>& at_narrow,
               const std::array<double, N>& at_wide, int64_t columns) {
  const double along =
      (static_cast<double>(columns) - narrow.columns) / (wide.columns - narrow.columns);
  double total = 0;
  for (size_t i = 0; i < N; ++i) {
    total += terms[i] * std::max(0.0, at_narrow[i] + along * (at_wide[i] - at_narrow[i]));
  }
  return 1e-9 * total;
}

}  // namespace

std::vector<std::string> cost_unit_names() {
  std::vector<std::string> names;
  for (const Unit& unit : units) names.emplace_back(unit.name);
  return names;
}

std::string cost_unit_name(CostUnit unit) {
  return std::string(units[static_cast<size_t>(unit)].name);
}

std::string_view cost_unit_text(std::string_view name) {
  return units[static_cast<size_t>(parse_cost_unit(name))].text;
}

CostUnit parse_cost_unit(std::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) return unit.unit;
  }
  throw Error(ErrorKind::usage, "no budget is counted in " + in_quotes(name) + "; " +
                                    suggest_name(name, cost_unit_names()));
}

int64_t SearchCost::slash_queries() const {
  return unit_ == CostUnit::gpu ? line_tile : slash_tile;
}

double SearchCost::run(const PlanWork& work, const CostCall& call) const {
  if (unit_ == CostUnit::flops) return work.attended;
  if (unit_ == CostUnit::cpu) return seconds(work.terms(), narrow.run, wide.run, head_size_);
  if (work.tiles == 0) return 0;
  // As if all heads had such lists.
  GpuWorkload load;
  load.keys = work.pairs / static_cast<double>(call.queries);
  load.longest = static_cast<int64_t>(work.longest);
  const GpuCall all{call.queries, call.rows, heads_, head_size_};
  return sparse_seconds(all, load) / static_cast<double>(heads_);
}

double SearchCost::dense(const PlanWork& work, const CostCall& call) const {
  if (unit_ != CostUnit::gpu) return run(work, call);
  return dense_seconds({call.queries, call.rows, heads_, head_size_}) / static_cast<double>(heads_);
}

double SearchCost::look(const LookWork& work, const CostCall& call) const {
  if (unit_ == CostUnit::flops || work.looks == 0) return 0;
  if (unit_ == CostUnit::cpu) return seconds(work.terms(), narrow.look, wide.look, head_size_);
  GpuWorkload load;
  load.plans = 0;
  const GpuCall all{call.queries, call.rows, heads_, head_size_};
  const double without = sparse_seconds(all, load);
  load.probes = 1;
  return (sparse_seconds(all, load) - without) / static_cast<double>(heads_);
}

}  // namespace kinora
