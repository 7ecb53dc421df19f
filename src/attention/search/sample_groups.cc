#include "attention/search/sample_groups.h"

#include <algorithm>

#include "attention/plan/line_plan.h"
#include "attention/policies/pattern.h"
#include "attention/search/search.h"

namespace kinora {
namespace {

constexpr int64_t most_seen = 2048;  // queries whose keys are counted, about

int64_t keys_seen(const Region& region, size_t query) {
  const int32_t reach = region.query_reach[query];
  return reach < 0 ? 0 : region.place_of(int64_t{reach} + 1);
}

}  // namespace

std::vector<SampleGroup> cut_groups(const QueryView& queries, const RowSet& rows, int64_t size) {
  std::vector<SampleGroup> groups;
  for (int64_t end = queries.count(); end > 0;) {
    const int64_t begin = std::max<int64_t>(0, end - size);
    SampleGroup group{slice(queries, begin, end - begin), rows};
    if (end < queries.count()) {
      const auto count = static_cast<size_t>(
          visible_rows(rows.ordinals, queries.ordinals[static_cast<size_t>(end) - 1]));
      group.rows.keys = rows.keys.rows(0, static_cast<int64_t>(count));
      group.rows.values = rows.values.rows(0, static_cast<int64_t>(count));
      group.rows.ordinals = rows.ordinals.first(count);
      group.rows.modalities = rows.modalities.first(count);
    }
    groups.push_back(group);
    end = begin;
  }
  std::reverse(groups.begin(), groups.end());
  return groups;
}

SampleBudget budget_of(std::span<const SampleGroup> groups, const SearchOptions& options,
                       const SearchCost& cost) {
  const PatternSpec pattern = scaled(options.budget, groups.back().rows.count());
  SampleBudget budget;
  for (const SampleGroup& group : groups) {
    const HeadViews views = view_head(group.queries, group.rows, 0);
    const Region region = cut_regions(Boundary::none, views.queries, views.rows).front();
    const auto work = [&](const PatternSpec& spec) {
      PlanBuilder builder(views.queries, views.rows);
      add_line_tiles(builder, region, resolve(spec, region, {}), 0);
      return work_of(builder.take(), views.queries, views.rows);
    };
    const PlanWork all = work({});
    budget.dense += cost.dense(all, group.call());
    budget.dense_pairs += all.attended;
    if (options.dense_share <= 0) budget.most += cost.run(work(pattern), group.call());
  }
  if (options.dense_share > 0) budget.most = options.dense_share * budget.dense;
  return budget;
}

Growth::Growth(std::span<const Region* const> earlier, const Region& last, double dense)
    : queries_(static_cast<double>(last.queries.size())) {
  for (size_t i = 0; i < last.queries.size(); ++i) last_ += static_cast<double>(keys_seen(last, i));
  pairs_ = last_;
  size_t count = 0;
  for (const Region* region : earlier) count += region->queries.size();
  const size_t step = 1 + count / static_cast<size_t>(most_seen);
  step_ = static_cast<double>(step);
  size_t place = 0;
  for (const Region* region : earlier) {
    for (size_t i = 0; i < region->queries.size(); ++i) {
      const auto seen = static_cast<double>(keys_seen(*region, i));
      pairs_ += seen;
      if (place++ % step == step / 2) seen_.push_back(seen);
    }
    look_ += static_cast<double>(region->row_count()) /
             static_cast<double>(std::max<int64_t>(1, last.row_count()));
  }
  price_ = last_ > 0 ? dense / last_ : 0;
}

double Growth::whole(double cost, const LineIndex& index) const {
  if (price_ <= 0 || seen_.empty()) return cost;
  const double keys = cost / price_ / queries_;  // of a query of the last group
  double share = index.everything ? 1 : 0;
  if (index.stride > 0) {
    share =
        static_cast<double>(index.vertical.size() + index.slash.size() + index.horizontal.size()) /
        index.stride;
  }
  const double mean = last_ / queries_;
  share = std::min({1.0, share, keys / mean});
  const double fixed = std::max(0.0, keys - share * mean);
  double pairs = 0;
  for (const double seen : seen_) pairs += std::min(seen, fixed + share * seen);
  return cost + price_ * step_ * pairs;
}

}  // namespace kinora
