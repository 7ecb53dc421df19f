#include "attention/search/inspection.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "attention/head_view.h"
#include "attention/planner.h"
#include "attention/policies/dense.h"
#include "attention/search/metrics.h"
#include "base/error.h"

namespace kinora {
namespace {

// The tiles of one head as a plan of a single head.
Plan only_head(const Plan& plan, int head) {
  Plan one = plan;
  one.heads = one.kv_heads = 1;
  std::erase_if(one.tiles, [&](const Tile& tile) {
    return head < tile.head || head >= tile.head + tile.heads;
  });
  for (Tile& tile : one.tiles) {
    tile.head = 0;
    tile.heads = 1;
  }
  return one;
}

}  // namespace

struct LayerInspection::Head {
  int head = 0;
  HeadMaps maps;
  std::map<std::string, int64_t> queries;  // by what the policy chose
  double recall = 0;                       // sum over queries
  int64_t pairs = 0;
  int64_t dense = 0;  // pairs
};

LayerInspection::LayerInspection(InspectionOptions options, std::unique_ptr<Attention> policy)
    : options_(std::move(options)), policy_(std::move(policy)) {}

LayerInspection::~LayerInspection() = default;

void LayerInspection::begin_group(const PromptGroup& group) {
  group_ = group;
  if (Planner* planner = policy_->planner(); planner != nullptr) planner->set_length(group.total);
}

void LayerInspection::see(const Context& context, const AttentionCall& call) {
  const HostCall host(call);
  const QueryView& queries = host.queries();
  const RowSet& rows = host.rows();
  const Context here(*context.threads);
  const auto heads = static_cast<int>(queries.queries.size(1));
  if (options_.head && (*options_.head < 0 || *options_.head >= heads)) {
    throw Error(ErrorKind::usage,
                fmt::format("head {} of {}; heads count from 0", *options_.head, heads));
  }
  if (heads_.empty()) {
    const int side = static_cast<int>(std::clamp<int64_t>(group_.total / 32, 1, options_.side));
    for (int head = 0; head < heads; ++head) {
      if (options_.head.value_or(head) != head) continue;
      heads_.push_back({head, HeadMaps(group_.total, side), {}, 0, 0, 0});
    }
  }
  modalities_.insert(modalities_.end(), queries.modalities.begin(), queries.modalities.end());
  std::vector<LabelledPlan> plans;
  Planner* planner = policy_->planner();
  if (planner != nullptr && !planner->falls_back(call.layer, queries, rows)) {
    plans = planner->plans(here, call.layer, queries, rows, call.scale);
  } else {
    plans.push_back({"dense", dense_plan(queries, rows)});
  }
  int64_t done = 0;
  for (Head& seen : heads_) {
    options_.cancel.check();
    const HeadViews view = view_head(queries, rows, seen.head);
    seen.maps.add_attention(here, view.queries, view.rows, call.scale);
    seen.dense += dense_pairs(1, view.queries, view.rows);
    for (const LabelledPlan& labelled : plans) {
      const Plan one = only_head(labelled.plan, seen.head);
      if (one.tiles.empty()) continue;
      const auto count = static_cast<double>(queries.count());
      seen.queries[labelled.label] += queries.count();
      seen.maps.add_plan(one, view.queries, view.rows, 0);
      seen.recall += count * captured_mass(here, one, view.queries, view.rows, call.scale);
      seen.pairs += attended_pairs(one, view.queries, view.rows);
    }
    ++done;
    if (options_.progress) {
      const int64_t tokens = done * group_.count / static_cast<int64_t>(heads_.size());
      options_.progress(group_.first + tokens, group_.total);
    }
  }
}

std::vector<HeadInspection> LayerInspection::heads() const {
  std::vector<HeadInspection> all;
  for (const Head& seen : heads_) {
    HeadInspection head;
    head.head = seen.head;
    const auto most =
        std::max_element(seen.queries.begin(), seen.queries.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != seen.queries.end()) head.pattern = most->first;
    head.recall = seen.recall / static_cast<double>(std::max<size_t>(1, modalities_.size()));
    head.share =
        static_cast<double>(seen.pairs) / static_cast<double>(std::max<int64_t>(1, seen.dense));
    head.attention = seen.maps.attention();
    head.coverage = seen.maps.coverage();
    all.push_back(std::move(head));
  }
  return all;
}

}  // namespace kinora
