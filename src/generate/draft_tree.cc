#include "generate/draft_tree.h"

#include <algorithm>
#include <numeric>

namespace kinora {

void DraftTree::add(int32_t parent, std::span<const Guess> guesses) {
  const Node above = parent < 0 ? Node{0, -1, 0, 0} : nodes_[static_cast<size_t>(parent)];
  for (const Guess& guess : guesses) {
    // A probability is at most 1, whatever rounding says.
    nodes_.push_back({guess.token, parent, above.depth + 1,
                      above.confidence + std::min(0.0f, guess.log_probability)});
  }
}

std::vector<int32_t> DraftTree::ranked(int64_t most) const {
  std::vector<int32_t> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min(most, std::ssize(order));
  std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) {
    const float first = nodes_[static_cast<size_t>(a)].confidence;
    const float second = nodes_[static_cast<size_t>(b)].confidence;
    return first != second ? first > second : a < b;
  });
  order.erase(end, order.end());
  return order;
}

std::vector<int32_t> DraftTree::frontier(int64_t width) const {
  std::vector<int32_t> level;
  for (const int32_t node : ranked()) {
    if (static_cast<int64_t>(level.size()) == width) break;
    if (nodes_[static_cast<size_t>(node)].depth == nodes_.back().depth) level.push_back(node);
  }
  std::sort(level.begin(), level.end());
  return level;
}

std::vector<DraftTree::Node> DraftTree::narrowed(int64_t width) const {
  std::vector<Node> kept;
  std::vector<bool> open(nodes_.size());  // those to go on from
  std::vector<size_t> level;              // nodes of one depth that are kept
  const auto close_level = [&] {
    std::stable_sort(level.begin(), level.end(), [&](size_t a, size_t b) {
      return nodes_[a].confidence > nodes_[b].confidence;
    });
    for (size_t i = 0; i < std::min(level.size(), static_cast<size_t>(width)); ++i) {
      open[level[i]] = true;
    }
    level.clear();
  };
  int32_t depth = 1, parent = -1;
  int64_t followers = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.depth > depth) close_level();
    if (i == 0 || node.parent != parent) followers = 0;
    depth = node.depth;
    parent = node.parent;
    if (++followers > width || (parent >= 0 && !open[static_cast<size_t>(parent)])) continue;
    level.push_back(i);
    kept.push_back(node);
  }
  return kept;
}

std::vector<int32_t> DraftTree::with_ancestors(std::span<const int32_t> nodes) const {
  std::vector<int32_t> all;
  for (int32_t node : nodes) {
    for (; node >= 0; node = nodes_[static_cast<size_t>(node)].parent) all.push_back(node);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::vector<int32_t> DraftTree::parents_among(std::span<const int32_t> nodes) const {
  std::vector<int32_t> parents;
  for (const int32_t place : nodes) {
    const int32_t above = nodes_[static_cast<size_t>(place)].parent;
    const auto parent = std::lower_bound(nodes.begin(), nodes.end(), above);
    parents.push_back(above < 0 ? -1 : static_cast<int32_t>(parent - nodes.begin()));
  }
  return parents;
}

Draft DraftTree::best(std::span<const int32_t> ranking, int64_t count) const {
  std::vector<int32_t> kept(ranking.begin(),
                            ranking.begin() + std::min<int64_t>(count, std::ssize(ranking)));
  std::sort(kept.begin(), kept.end());
  Draft draft;
  for (const int32_t place : kept) draft.ids.push_back(nodes_[static_cast<size_t>(place)].token);
  draft.parents = parents_among(kept);
  return draft;
}

}  // namespace kinora
