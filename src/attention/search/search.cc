#include "attention/search/search.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <set>

#include "attention/plan/region.h"
#include "attention/policies/sparse_attention.h"
#include "attention/search/head_search.h"
#include "attention/search/probe.h"
#include "base/error.h"

namespace kinora {
namespace {

constexpr int64_t later_text = 128;  // queries that say which rows matter
// Sizes that use the budget on one prompt may cost a little more on another.
constexpr double most_over = 0.05;

// Only what will be sparse is searched, in groups as a session reads it: patterns look at the last
// queries of their group.
std::vector<SampleGroup> searched_part(const QueryView& queries, const RowSet& rows,
                                       const SearchOptions& options) {
  const QueryView sparse =
      slice(queries, 0, queries.count() - last_text(queries, options.dense_last));
  check_sample(sparse, rows);
  return cut_groups(sparse, rows, options.group_queries);
}

// work(context, i) for i in [0, count), side by side, each on a thread of its own.
template <typename Work>
void for_each_alone(const Context& context, size_t count, const Work& work) {
  context.threads->parallel_for(static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
    const ThreadPool one(1);
    const Context alone(one);
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) work(alone, i);
  });
}

// What all heads of a layer are searched with.
struct Sample {
  Sample(const Context& context, const HostCall& host, float scale, const SearchOptions& options)
      : groups(searched_part(host.queries(), host.rows(), options)),
        cost(options.unit, host.queries().queries.size(1), host.queries().queries.size(2)),
        budget(budget_of(groups, options, cost)),
        weights(
            weights_of_rows(context, host.queries(), host.rows(), scale, groups.back().queries)) {}

  std::vector<SampleGroup> groups;
  SearchCost cost;
  SampleBudget budget;
  std::vector<float> weights;
};

std::vector<std::unique_ptr<HeadSearch>> searches_of(const Context& context, const Sample& sample,
                                                     float scale, std::span<const int> heads,
                                                     const SearchOptions& options) {
  std::vector<std::unique_ptr<HeadSearch>> searches(heads.size());
  for_each_alone(context, heads.size(), [&](const Context& alone, size_t i) {
    searches[i] = std::make_unique<HeadSearch>(alone, sample.groups, heads[i], scale, sample.budget,
                                               options, sample.cost, sample.weights);
  });
  return searches;
}

// A search that goes on must be the same one.
void begin(HeadTable& table, const SearchOptions& options, double budget, int64_t tokens) {
  constexpr double same = 1e-9;  // numbers in a file are read as they were written
  const std::string unit = cost_unit_name(options.unit);
  const bool fresh = std::none_of(table.heads.begin(), table.heads.end(),
                                  [](const auto& head) { return head.has_value(); });
  if (!fresh && (table.budget_unit != unit || std::abs(table.budget - budget) > same ||
                 table.sample_tokens != tokens)) {
    const std::vector<std::string> known = cost_unit_names();
    const bool counted = std::find(known.begin(), known.end(), table.budget_unit) != known.end();
    throw Error(
        ErrorKind::usage,
        fmt::format("the unfinished attention table was begun with {:.2f} % of {} on {} tokens, "
                    "and this search has {:.2f} % of {} on {}; finish it as it was begun, or "
                    "start anew",
                    100 * table.budget,
                    counted ? cost_unit_text(table.budget_unit) : "what another version counts",
                    table.sample_tokens, 100 * budget, cost_unit_text(unit), tokens));
  }
  table.budget = budget;
  table.budget_unit = unit;
  table.sample_tokens = tokens;
}

}  // namespace

std::vector<PatternSpec> distinct_at_one_cost(const std::vector<PatternSpec>& candidates) {
  std::vector<PatternSpec> distinct;
  for (const PatternSpec& candidate : candidates) {
    for (PatternSpec& spec : shapes_of(candidate)) {
      if (std::find(distinct.begin(), distinct.end(), spec) == distinct.end()) {
        distinct.push_back(std::move(spec));
      }
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

SearchOptions with_candidates(SearchOptions options) {
  if (options.candidates.empty()) options.candidates = search_space(options.frame_stride);
  if (options.grow) options.candidates = distinct_at_one_cost(options.candidates);
  return options;
}

void check_sample(const QueryView& queries, const RowSet& rows) {
  if (queries.count() < 2 * SparseOptions().least_queries) {
    throw Error(
        ErrorKind::usage,
        fmt::format("the sample has {} tokens besides the question; a search needs at least {}",
                    queries.count(), 2 * SparseOptions().least_queries));
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

std::vector<float> weights_of_rows(const Context& context, const QueryView& group,
                                   const RowSet& rows, float scale, const QueryView& searched) {
  std::vector<double> mass(static_cast<size_t>(searched.count()));
  const auto heads = static_cast<size_t>(group.queries.size(1));
  for (const Region& region : cut_regions(Boundary::query, group, rows)) {
    if (region.query_modality != Modality::text) continue;
    // By head, and added up in their order, so that threads change nothing.
    std::vector<Probe> probes(heads);
    for_each_alone(context, heads, [&](const Context& alone, size_t head) {
      probes[head] = probe_region(alone, group, rows, region, static_cast<int>(head), scale,
                                  ProbeOf::region, later_text);
    });
    for (const Probe& probe : probes) {
      for (size_t i = 0; i < mass.size(); ++i) {
        const int64_t row = visible_rows(rows.ordinals, searched.ordinals[i]) - 1;
        mass[i] += static_cast<double>(probe.columns[static_cast<size_t>(row)]);
      }
    }
  }
  std::vector<double> own(mass.size());  // 1 in the text that ends the group
  const int64_t end = group.count() - last_text(group, later_text);
  for (size_t i = 0; i < own.size(); ++i) {
    own[i] = end < group.count() && searched.ordinals[i] >= group.ordinals[size_t(end)] ? 1 : 0;
  }
  // Parts that weigh the same; one that is zero everywhere is left out.
  std::vector<std::vector<double>> parts = {std::vector<double>(mass.size(), 1.0), mass, own};
  const auto sum = [](const auto& part) { return std::accumulate(part.begin(), part.end(), 0.0); };
  std::erase_if(parts, [&](const auto& part) { return sum(part) <= 0; });
  std::vector<float> weights(mass.size());
  for (const std::vector<double>& part : parts) {
    const double factor =
        static_cast<double>(weights.size()) / (sum(part) * static_cast<double>(parts.size()));
    for (size_t i = 0; i < weights.size(); ++i) weights[i] += static_cast<float>(part[i] * factor);
  }
  return weights;
}

PatternSearch::PatternSearch(HeadTable& table, SearchOptions options, Found found)
    : table_(table), options_(with_candidates(std::move(options))), found_(std::move(found)) {}

PatternSearch::~PatternSearch() = default;

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
  const Sample sample(Context(*context.threads), host, call.scale, options_);
  if (!begun_) {
    begin(table_, options_, sample.budget.most / sample.budget.dense, host.queries().count());
  }
  begun_ = true;
  const std::vector<std::unique_ptr<HeadSearch>> searches =
      searches_of(context, sample, call.scale, missing, options_);
  // Heads and boundaries side by side, each on one thread.
  const size_t count = options_.boundaries.size();
  std::vector<JudgedChoice> choices(missing.size() * count);
  std::vector<size_t> open(missing.size(), count);
  std::mutex mutex;
  for_each_alone(context, choices.size(), [&](const Context& alone, size_t i) {
    const size_t at = i / count;
    JudgedChoice choice = searches[at]->best_with(alone, options_.boundaries[i % count]);
    const std::lock_guard lock(mutex);
    choices[i] = std::move(choice);
    if (--open[at] > 0) return;
    const int head = missing[at];
    table_.at(layer, head) = searches[at]->best_of(std::span(choices).subspan(at * count, count));
    if (found_) found_(layer, head, *table_.at(layer, head));
  });
}

TableTrial::TableTrial(std::vector<HeadTable> tables, SearchOptions options)
    : tables_(std::move(tables)), options_(with_candidates(std::move(options))) {
  for (const HeadTable& table : tables_) {
    if (!table.complete() || table.shape != tables_.front().shape) {
      throw Error(ErrorKind::bad_input, "attention tables of different models, or unfinished ones");
    }
  }
  if (tables_.empty()) throw Error(ErrorKind::bad_input, "no attention table to try");
  scores_.resize(tables_.front().heads.size() * tables_.size());
  prompts_.resize(static_cast<size_t>(tables_.front().shape.layers));
}

TableTrial::~TableTrial() = default;

void TableTrial::see(const Context& context, const AttentionCall& call) {
  const TableShape& shape = tables_.front().shape;
  if (call.queries.queries.size(1) != shape.heads || call.layer >= shape.layers) {
    throw Error(ErrorKind::bad_input, "the attention table has another shape than the model");
  }
  const HostCall host(call);
  const Sample sample(Context(*context.threads), host, call.scale, options_);
  std::vector<int> heads(static_cast<size_t>(shape.heads));
  std::iota(heads.begin(), heads.end(), 0);
  const std::vector<std::unique_ptr<HeadSearch>> searches =
      searches_of(context, sample, call.scale, heads, options_);
  const size_t first = static_cast<size_t>(call.layer) * heads.size();
  for_each_alone(context, heads.size() * tables_.size(), [&](const Context& alone, size_t i) {
    const size_t head = i / tables_.size();
    const HeadTable& table = tables_[i % tables_.size()];
    const JudgedChoice judged = searches[head]->judged(alone, *table.heads[first + head]);
    Score& score = scores_[first * tables_.size() + i];
    score.recall += judged.choice.recall;
    score.error += judged.choice.error;
    score.flops += judged.choice.flops;
    score.index += judged.choice.index;
    score.time += judged.choice.time;
    score.cost += judged.cost;
  });
  ++prompts_[static_cast<size_t>(call.layer)];
}

HeadTable TableTrial::best() const {
  HeadTable best = tables_.front();
  const auto heads = static_cast<size_t>(best.shape.heads);
  for (size_t place = 0; place < best.heads.size(); ++place) {
    const auto prompts = static_cast<double>(prompts_[place / heads]);
    if (prompts == 0) throw Error(ErrorKind::internal, "a layer that no prompt has tried");
    const auto score = [&](size_t t) { return scores_[place * tables_.size() + t]; };
    const auto affordable = [&](size_t t) { return score(t).cost <= (1 + most_over) * prompts; };
    size_t chosen = 0;
    for (size_t t = 1; t < tables_.size(); ++t) {
      const bool better = affordable(t) != affordable(chosen) ? affordable(t)
                          : affordable(t)                     ? score(t).error < score(chosen).error
                                                              : score(t).cost < score(chosen).cost;
      if (better) chosen = t;
    }
    HeadChoice choice = *tables_[chosen].heads[place];
    choice.recall = score(chosen).recall / prompts;
    choice.error = score(chosen).error / prompts;
    choice.flops = score(chosen).flops / prompts;
    choice.index = score(chosen).index / prompts;
    choice.time = score(chosen).time / prompts;
    best.heads[place] = std::move(choice);
  }
  return best;
}

}  // namespace kinora
