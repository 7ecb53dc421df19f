// Trees of drafted tokens: one forward gives every node what its path gives as a chain.
#include <gtest/gtest.h>

#include <algorithm>

#include "model/decoder/batch_case.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::BatchSession;
using testing::Script;
using testing::TokenTree;

class TokenTreeTest : public testing::BatchCase {
 protected:
  TokenTree random_tree(Random& random, int64_t nodes) const {
    return TokenTree::any(random, nodes, config_.vocabulary);
  }
  void expect_paths(const Tensor& hidden, BatchSession& twin, const TokenTree& tree) const {
    const Tensor rows = hidden.to(Device::cpu());
    ASSERT_EQ(rows.size(0), tree.nodes());
    const MemoryMark before = twin.memory->mark();
    const Script text = twin.script;
    for (int32_t node = 0; node < tree.nodes(); ++node) {
      const std::vector<int32_t> path = tree.path(node);
      twin.script = twin.followed(tree, path);
      Sequence chain = twin.next(static_cast<int64_t>(path.size()));
      chain.hidden_rows = 1;
      const Tensor expected = alone_->forward(chain).hidden.to(Device::cpu());
      EXPECT_LE(testing::row_error(rows.view().rows(node, 1), expected), tolerance())
          << "node " << node;
      twin.memory->rewind(before);
      twin.script = text;
    }
  }
  // Both go on: the session from the accepted path, the twin from the same tokens as a chain.
  void expect_goes_on(Random& random, BatchSession& session, BatchSession& twin,
                      const TokenTree& tree, std::span<const int32_t> path) const {
    session.memory->accept(context_, path);
    session.script = twin.script = session.followed(tree, path);
    read_alone(twin, static_cast<int64_t>(path.size()));
    ASSERT_EQ(session.memory->token_count(), twin.memory->token_count());
    for (int layer = 0; layer < decoder_->layer_count(); ++layer) {
      EXPECT_EQ(session.memory->row_count(layer), twin.memory->row_count(layer));
    }
    for (const int64_t count : {1, 5, 1}) {
      for (int64_t i = 0; i < count; ++i) session.script.add(random_id(random));
      twin.script = session.script;
      expect_as_alone({&session, 1}, {&twin, 1}, std::vector<int64_t>{count});
    }
  }
};

TEST_P(TokenTreeTest, NodesGetWhatTheirPathsGive) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t prefix : {0, 37}) {
    for (const int64_t nodes :
         testing::sanitized() ? std::vector<int64_t>{6} : std::vector<int64_t>{1, 6, 24, 64, 90}) {
      SCOPED_TRACE(std::to_string(nodes) + " nodes behind " + std::to_string(prefix) + " tokens");
      BatchSession drafted = session(random, prefix), twin_of = twin(drafted);
      read_alone(drafted, prefix);
      read_alone(twin_of, prefix);
      // Trees one after another, the same number of nodes in another shape.
      for (int turn = 0; turn < 3; ++turn) {
        const TokenTree tree = random_tree(random, nodes);
        expect_paths(runner_->forward(drafted.verify(tree)).hidden, twin_of, tree);
        const auto node = static_cast<int32_t>(random.below(nodes));
        expect_goes_on(random, drafted, twin_of, tree, tree.path(node));
      }
    }
  }
}

TEST_P(TokenTreeTest, NothingAcceptedLeavesNothing) {
  KINORA_FRESH_RANDOM(random);
  BatchSession drafted = session(random, 20), twin_of = twin(drafted);
  read_alone(drafted, 20);
  read_alone(twin_of, 20);
  const TokenTree tree = random_tree(random, 12);
  runner_->forward(drafted.verify(tree));
  expect_goes_on(random, drafted, twin_of, tree, {});
}

// Small enough for captured steps, and with a group that is not.
TEST_P(TokenTreeTest, TreesAndChainsInOneBatch) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t group : {1, 130}) {
    SCOPED_TRACE("next to a group of " + std::to_string(group));
    std::vector<BatchSession> sessions, twins;
    for (int i = 0; i < 3; ++i) {
      const int64_t prefix = 15 * (i + 1);
      sessions.push_back(session(random, prefix));
      if (i == 2) extend(random, sessions[2].script, 3 * group);
      twins.push_back(twin(sessions.back()));
      read_alone(sessions.back(), prefix);
      read_alone(twins.back(), prefix);
    }
    for (int turn = 0; turn < 3; ++turn) {
      const std::vector<TokenTree> trees = {random_tree(random, 24), random_tree(random, 12)};
      const std::vector<Sequence> batch = {sessions[0].verify(trees[0]),
                                           sessions[1].verify(trees[1]), sessions[2].next(group)};
      const std::vector<Forwarded> results = runner_->forward(batch);
      for (const Forwarded& result : results) ASSERT_FALSE(result.failure);
      for (size_t i = 0; i < trees.size(); ++i) {
        expect_paths(results[i].hidden, twins[i], trees[i]);
        const auto node = static_cast<int32_t>(random.below(trees[i].nodes()));
        expect_goes_on(random, sessions[i], twins[i], trees[i], trees[i].path(node));
      }
      expect_close(results[2].hidden, alone_->forward(twins[2].next(group)).hidden);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, TokenTreeTest, testing::batch_places(), testing::batch_label);

}  // namespace
}  // namespace kinora
