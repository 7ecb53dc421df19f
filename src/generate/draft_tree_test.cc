#include "generate/draft_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "support/random_data.h"

namespace kinora {
namespace {

std::vector<Guess> random_guesses(Random& random, int64_t count) {
  std::vector<Guess> guesses;
  for (int64_t i = 0; i < count; ++i) {
    // Certain ones now and then: a child as likely as its parent.
    const double probability = random.uniform() < 0.2 ? 1 : random.uniform();
    guesses.push_back({static_cast<int32_t>(i), static_cast<float>(std::log(probability))});
  }
  return guesses;
}

TEST(DraftTree, KeepsTheLikeliestPathsWithAllThatIsAboveThem) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 300; ++round) {
    const int64_t width = 1 + random.below(9), depth = random.below(6);
    DraftTree tree;
    tree.add(-1, random_guesses(random, width));
    for (int64_t level = 0; level < depth; ++level) {
      const std::vector<int32_t> frontier = tree.frontier(width);
      ASSERT_LE(std::ssize(frontier), width);
      // The deepest ones, and none left out is likelier.
      const int32_t deepest = tree.nodes().back().depth;
      ASSERT_EQ(deepest, level + 1);
      float worst = 0;
      for (const int32_t node : frontier) {
        EXPECT_EQ(tree.nodes()[static_cast<size_t>(node)].depth, deepest);
        worst = std::min(worst, tree.nodes()[static_cast<size_t>(node)].confidence);
      }
      for (int32_t node = 0; node < std::ssize(tree.nodes()); ++node) {
        const DraftTree::Node& other = tree.nodes()[static_cast<size_t>(node)];
        if (other.depth != deepest || std::ranges::count(frontier, node) > 0) continue;
        EXPECT_LE(other.confidence, worst);
      }
      const std::vector<int32_t> closed = tree.with_ancestors(frontier);
      std::set<int32_t> expected;
      for (int32_t node : frontier) {
        for (; node >= 0; node = tree.nodes()[static_cast<size_t>(node)].parent) {
          expected.insert(node);
        }
      }
      EXPECT_EQ(closed, std::vector<int32_t>(expected.begin(), expected.end()));
      // The leaves come last: their rows are the last of a run.
      EXPECT_TRUE(std::equal(frontier.rbegin(), frontier.rend(), closed.rbegin()));
      for (const int32_t node : frontier) tree.add(node, random_guesses(random, width));
    }
    const std::vector<int32_t> ranking = tree.ranked();
    const int64_t count = random.below(std::ssize(tree.nodes()) + 3);
    const Draft draft = tree.best(ranking, count);
    ASSERT_EQ(std::ssize(draft.ids), std::min<int64_t>(count, std::ssize(tree.nodes())));
    std::vector<double> confidences, best;
    for (const DraftTree::Node& node : tree.nodes()) best.push_back(double{node.confidence});
    std::sort(best.rbegin(), best.rend());
    best.resize(draft.ids.size());
    for (size_t i = 0; i < draft.ids.size(); ++i) {
      ASSERT_LT(draft.parents[i], static_cast<int32_t>(i));
      // The node with this path, found from the top.
      std::vector<int32_t> path;
      for (auto at = static_cast<int32_t>(i); at >= 0;
           at = draft.parents[static_cast<size_t>(at)]) {
        path.insert(path.begin(), draft.ids[static_cast<size_t>(at)]);
      }
      int32_t found = -1;
      for (const int32_t token : path) {
        int32_t next = -1;
        for (int32_t node = 0; node < std::ssize(tree.nodes()); ++node) {
          const DraftTree::Node& child = tree.nodes()[static_cast<size_t>(node)];
          if (child.parent == found && child.token == token) next = node;
        }
        ASSERT_GE(next, 0);
        found = next;
      }
      confidences.push_back(double{tree.nodes()[static_cast<size_t>(found)].confidence});
    }
    std::sort(confidences.rbegin(), confidences.rend());
    EXPECT_EQ(confidences, best);
  }
}

TEST(DraftTree, RoundingNeverMakesAChildLikelierThanItsParent) {
  DraftTree tree;
  tree.add(-1, std::vector<Guess>{{5, -0.5f}});
  tree.add(0, std::vector<Guess>{{6, 1e-6f}});
  EXPECT_EQ(tree.ranked(), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(tree.best(tree.ranked(), 1).ids, std::vector<int32_t>{5});
}

}  // namespace
}  // namespace kinora
