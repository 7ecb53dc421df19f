// How long plans and their lines take on one thread of this CPU, as so much for each unit of
// counted work (attention/search/plan_work.h): where the constants of
// attention/search/search_cost.cc come from. Each plan is also told by rates that were fitted to
// the others, and by the constants in use.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attention/head_view.h"
#include "attention/plan/line_plan.h"
#include "attention/runner.h"
#include "attention/search/plan_work.h"
#include "attention/search/probe.h"
#include "attention/search/search_cost.h"
#include "base/error.h"
#include "common/samples.h"
#include "input.h"

namespace kinora::bench {
namespace {

struct Settings {
  std::vector<int64_t> tokens = {6000, 12000, 24000};
  std::vector<int64_t> columns = {64, 128};
  int repeats = 3;
  bool json = false;
};

constexpr int64_t group = 2048;  // queries, the last ones
constexpr std::array patterns = {
    "dense",
    "a-shape:sink=128,local=1024",
    "a-shape:sink=1024,local=4096",
    "a-shape:sink=128,local=12000",
    "vertical-slash:verticals=250,slashes=256",
    "vertical-slash:verticals=1000,slashes=1024",
    "vertical-slash:verticals=3500,slashes=200",
    "vertical-slash:verticals=1000,slashes=4096",
    "vertical-slash:verticals=6000,slashes=6000",
    "grid:sink=128,stride=64,lines=v",
    "grid:sink=128,stride=64,phases=12,lines=v",
    "grid:sink=128,stride=64,local=2000,lines=hv",
    "grid:sink=128,stride=64,lines=s",
    "grid:sink=128,stride=64,phases=6,lines=vs",
    "grid:sink=128,stride=64,local=1000,lines=vs",
    "grid:sink=128,stride=64,phases=4,local=3000,lines=hvs",
    "grid:sink=128,lines=v",
    "grid:sink=128,lines=vs",
};

template <size_t N>
using Terms = std::array<double, N>;

// Rates ≥ 0 with which the terms of every sample add up to its seconds, as nearly as they can, by
// relative error: Σ (Σ f·x / y − 1)² is made least one rate at a time, each cut off at 0.
template <size_t N>
Terms<N> fit(const std::vector<Terms<N>>& samples, const std::vector<double>& seconds) {
  constexpr int rounds = 3000;
  Terms<N> rates{};
  for (int round = 0; round < rounds; ++round) {
    for (size_t f = 0; f < N; ++f) {
      double along = 0, squares = 0;
      for (size_t i = 0; i < samples.size(); ++i) {
        const double term = samples[i][f] / seconds[i];
        double rest = 1;
        for (size_t g = 0; g < N; ++g) {
          if (g != f) rest -= rates[g] * samples[i][g] / seconds[i];
        }
        along += rest * term;
        squares += term * term;
      }
      rates[f] = squares > 0 ? std::max(0.0, along / squares) : 0;
    }
  }
  return rates;
}

// |told / taken − 1|, of all.
struct Misses {
  std::vector<double> all;
  double median() {
    std::sort(all.begin(), all.end());
    return all.empty() ? 0 : all[all.size() / 2];
  }
  double worst() const { return all.empty() ? 0 : *std::max_element(all.begin(), all.end()); }
};

template <size_t N>
double total(const Terms<N>& rates, const Terms<N>& terms) {
  double sum = 0;
  for (size_t i = 0; i < N; ++i) sum += rates[i] * terms[i];
  return sum;
}

template <size_t N>
struct Fitted {
  Terms<N> rates;  // nanoseconds, of all samples
  Misses unseen;   // of rates fitted to all samples but one, on that one
};

template <size_t N>
Fitted<N> fit_and_try(const std::vector<Terms<N>>& samples, const std::vector<double>& seconds) {
  Fitted<N> fitted{fit(samples, seconds), {}};
  for (size_t i = 0; i < samples.size(); ++i) {
    std::vector<Terms<N>> others = samples;
    std::vector<double> taken = seconds;
    others.erase(others.begin() + static_cast<int64_t>(i));
    taken.erase(taken.begin() + static_cast<int64_t>(i));
    fitted.unseen.all.push_back(std::abs(total(fit(others, taken), samples[i]) / seconds[i] - 1));
  }
  for (double& rate : fitted.rates) rate *= 1e9;
  return fitted;
}

nlohmann::ordered_json measure(const Settings& settings, int64_t columns) {
  const ThreadPool pool(1);
  const Context context(pool);
  const SearchCost cost(CostUnit::cpu, 1, columns);
  std::vector<Terms<PlanWork::term_count>> works;
  std::vector<Terms<LookWork::term_count>> looks;
  std::vector<double> run_seconds, look_seconds;
  std::vector<double> run_told, look_told;
  for (const int64_t tokens : settings.tokens) {
    const Input input({tokens, 1, 1, columns, 16}, static_cast<uint64_t>(tokens));
    const RowSet rows = input.rows(tokens);
    const QueryView queries = slice(input.queries(tokens), tokens - group, group);
    const Region region = cut_regions(Boundary::none, queries, rows).front();
    const CostCall call{group, tokens};
    Tensor out(DType::f32, queries.queries.shape());
    for (const char* text : patterns) {
      const PatternSpec spec = scaled(parse_pattern(text), tokens);
      Probe probe;
      LineIndex index;
      Samples look_samples, run_samples;
      Plan plan;
      for (int i = 0; i < settings.repeats; ++i) {
        look_samples.add(cpu_seconds_of([&] {
          probe = spec.kind->needs_probe ? probe_region(context, queries, rows, region, 0,
                                                        input.scale(), ProbeOf::each_modality)
                                         : Probe{};
          index = resolve(spec, region, probe);
        }));
        run_samples.add(cpu_seconds_of([&] {
          PlanBuilder builder(queries, rows);
          add_line_tiles(builder, region, index, 0);
          plan = builder.take();
          run_plan(context, plan, queries, rows, input.scale(), out);
        }));
      }
      const PlanWork work = work_of(plan, queries, rows);
      works.push_back(work.terms());
      run_seconds.push_back(run_samples.summary().median);
      run_told.push_back(cost.run(work, call));
      const LookWork look = look_of(spec, region, probe);
      if (look.looks == 0) continue;
      looks.push_back(look.terms());
      look_seconds.push_back(look_samples.summary().median);
      look_told.push_back(cost.look(look, call));
    }
    fmt::print(stderr, "{} columns, {} tokens\n", columns, tokens);
  }
  // The constants' unit is this CPU's speed only where they were measured: what must be right is
  // the ratio to dense attention.
  Misses in_use;
  for (size_t i = 0; i < run_told.size(); ++i) {
    const size_t dense = i / patterns.size() * patterns.size();
    const double told = run_told[i] / run_told[dense], taken = run_seconds[i] / run_seconds[dense];
    if (i != dense) in_use.all.push_back(std::abs(told / taken - 1));
  }
  auto run = fit_and_try(works, run_seconds);
  auto look = fit_and_try(looks, look_seconds);
  return {{"columns", columns},
          {"pair", run.rates[0]},
          {"key", run.rates[1]},
          {"scattered key", run.rates[2]},
          {"tile", run.rates[3]},
          {"segment", run.rates[4]},
          {"score of a look", look.rates[0]},
          {"ranked line", look.rates[1]},
          {"folded line", look.rates[2]},
          {"plans", run_seconds.size()},
          {"missed", 100 * run.unseen.median()},
          {"missed_most", 100 * run.unseen.worst()},
          {"look_missed", 100 * look.unseen.median()},
          {"in_use", 100 * in_use.median()},
          {"in_use_most", 100 * in_use.worst()}};
}

int run(const Settings& settings) {
  nlohmann::ordered_json all;
  for (const int64_t columns : settings.columns) {
    all["results"].push_back(measure(settings, columns));
  }
  if (settings.json) {
    fmt::print("{}\n", all.dump(1));
    return 0;
  }
  for (const auto& result : all["results"]) {
    for (const auto& [name, value] : result.items())
      fmt::print("{:<18} {:.4g}\n", name, value.get<double>());
    fmt::print("\n");
  }
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) {
  kinora::bench::Settings settings;
  CLI::App app(
      "What counted work takes on one thread, in nanoseconds, and how well that tells times");
  app.add_option("--tokens", settings.tokens, "lengths of the prompts")
      ->check(CLI::Range(4096, 1 << 20));
  app.add_option("--columns", settings.columns, "of a head")->check(CLI::IsMember({64, 128}));
  app.add_option("--repeats", settings.repeats, "of each; the median counts")
      ->check(CLI::Range(1, 100));
  app.add_flag("--json", settings.json, "for scripts");
  CLI11_PARSE(app, argc, argv);
  try {
    return kinora::bench::run(settings);
  } catch (const kinora::Error& error) {
    fmt::print(stderr, "bench_plan_cost: {}\n", error.what());
    return 1;
  }
}
