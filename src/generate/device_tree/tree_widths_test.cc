#include "generate/device_tree/tree_widths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "support/random_data.h"

namespace kinora {
namespace {

// A tree in which the best follower of anything has this probability, and each other one a tenth of
// the rest.
DraftTree tree_of(double best, const TreeShape& shape) {
  DraftTree tree;
  std::vector<Guess> guesses;
  for (int64_t i = 0; i < shape.width; ++i) {
    const double share = i == 0 ? best : (1 - best) / 10;
    guesses.push_back({static_cast<int32_t>(i), static_cast<float>(std::log(share))});
  }
  tree.add(-1, guesses);
  for (int64_t level = 0; level < shape.depth; ++level) {
    for (const int32_t leaf : tree.frontier(shape.width)) tree.add(leaf, guesses);
  }
  return tree;
}

struct Machine {
  std::map<int64_t, double> trees;   // seconds by width
  std::map<int64_t, double> passes;  // 1 where nothing is said
  std::map<int64_t, double> right;   // of what was promised, all where nothing is said
};

// What is chosen in the long run where the best follower of anything has this probability.
int64_t settled(double best, const Machine& machine) {
  const TreeShape shape{30, 4, 8};
  DraftCosts costs({0.01, 0.2, 0.01});
  for (int i = 0; i < 20; ++i) costs.note_pass(1, 1);
  const auto given = [](const std::map<int64_t, double>& values, int64_t width) {
    const auto found = values.find(width);
    return found == values.end() ? 1 : found->second;
  };
  TreeWidths widths(shape);
  std::map<int64_t, int> chosen;
  for (int i = 0; i < 300; ++i) {
    const int64_t width = widths.next();
    const DraftTree tree = tree_of(best, {shape.total, shape.depth, width});
    std::vector<double> confidences;
    for (const int32_t node : tree.ranked(shape.total - 1)) {
      confidences.push_back(std::exp(tree.nodes()[static_cast<size_t>(node)].confidence));
    }
    widths.see(width, tree, confidences, costs);
    // The first trees of a width take much longer than all that follow, which is not told.
    if (++chosen[width] <= 2) continue;
    const double promised = std::accumulate(confidences.begin(), confidences.end(), 0.0);
    // Now and then a pass has to wait for something.
    const double waiting = i % 7 == 0 ? 5 : 1;
    widths.note(width, {machine.trees.at(width), given(machine.passes, width) * waiting,
                        given(machine.right, width) * promised, promised});
  }
  EXPECT_EQ(chosen.size(), 2u) << "both are tried";
  EXPECT_GE(chosen[8], 6) << "the widest shows now and then what a chain misses";
  EXPECT_GE(chosen[1], 6) << "and what was slow once is tried again";
  return std::max_element(chosen.begin(), chosen.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

TEST(TreeWidths, FindsWhatPays) {
  // Where width costs nothing, the widest; where guesses are sure and width costs, a chain.
  EXPECT_EQ(settled(0.2, {{{8, 0.2}, {1, 0.2}}, {}, {}}), 8);
  EXPECT_EQ(settled(0.2, {{{8, 3}, {1, 0.2}}, {}, {}}), 1);
  EXPECT_EQ(settled(0.99, {{{8, 0.8}, {1, 0.2}}, {}, {}}), 1);
  // The pass over many guesses counts too, and whether those of a kind come true.
  EXPECT_EQ(settled(0.9, {{{8, 0.2}, {1, 0.2}}, {{8, 3}}, {}}), 1);
  EXPECT_EQ(settled(0.99, {{{8, 0.5}, {1, 0.2}}, {}, {{1, 0.5}}}), 8);
}

// A width whose trees never take what they usually take is not tried for ever.
TEST(TreeWidths, LeavesAloneWhatIsNeverUsual) {
  const TreeShape shape{30, 4, 8};
  const DraftCosts costs({0.01, 0.2, 0.01});
  TreeWidths widths(shape);
  std::map<int64_t, int> chosen;
  for (int i = 0; i < 200; ++i) {
    const int64_t width = widths.next();
    widths.see(width, tree_of(0.9, {shape.total, shape.depth, width}), std::vector{0.9}, costs);
    ++chosen[width];
    if (width == 1) widths.note(width, {1, 1, 1, 1});
  }
  EXPECT_LT(chosen[8], 25);
}

// The narrowed tree is the one that would have grown with that width, where the wide one holds it.
TEST(DraftTreeNarrowed, IsTheNarrowTreeAsFarAsItIsThere) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 50; ++round) {
    const int64_t wide = 1 + random.below(8), narrow = 1 + random.below(wide);
    // Further down the wide tree may lack a leaf that the narrow one would have gone on from.
    const int64_t depth = random.below(narrow == wide ? 5 : 3);
    // Followers of a path are always the same, whichever tree asks.
    std::map<std::vector<int32_t>, std::vector<Guess>> known;
    const auto path_of = [](const DraftTree& tree, int32_t node) {
      std::vector<int32_t> path;
      for (; node >= 0; node = tree.nodes()[static_cast<size_t>(node)].parent) {
        path.push_back(tree.nodes()[static_cast<size_t>(node)].token);
      }
      return path;
    };
    const auto grow = [&](int64_t width) {
      DraftTree tree;
      const auto add = [&](int32_t node) {
        std::vector<Guess>& all = known[path_of(tree, node)];
        double left = 1;
        for (int32_t i = static_cast<int32_t>(all.size()); i < wide; ++i) {
          const double share = left * random.uniform() * 0.9;
          all.push_back({i, static_cast<float>(std::log(share + 1e-9))});
          left -= share;
        }
        std::sort(all.begin(), all.end(), [](const Guess& a, const Guess& b) {
          return a.log_probability > b.log_probability;
        });
        tree.add(node, std::span(all).first(static_cast<size_t>(width)));
      };
      add(-1);
      for (int64_t level = 0; level < depth; ++level) {
        for (const int32_t leaf : tree.frontier(width)) add(leaf);
      }
      return tree;
    };
    const DraftTree tree = grow(wide);
    std::multiset<float> expected;
    const DraftTree small = grow(narrow);
    std::set<std::vector<int32_t>> there;
    for (int32_t i = 0; i < std::ssize(tree.nodes()); ++i) there.insert(path_of(tree, i));
    for (int32_t i = 0; i < std::ssize(small.nodes()); ++i) {
      if (there.contains(path_of(small, i))) {
        expected.insert(small.nodes()[static_cast<size_t>(i)].confidence);
      }
    }
    std::multiset<float> actual;
    for (const DraftTree::Node& node : tree.narrowed(narrow)) actual.insert(node.confidence);
    EXPECT_EQ(actual, expected) << "width " << narrow << " of " << wide << ", depth " << depth;
  }
}

}  // namespace
}  // namespace kinora
