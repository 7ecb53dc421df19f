// Test support: conversations in tokens, without a session, and drafters that know, or do not know,
// what the model is going to say.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/policies/dense.h"
#include "base/random.h"
#include "generate/generation.h"
#include "memory/flat_memory.h"

namespace kinora::testing {

inline std::vector<int32_t> random_ids(Random& random, int64_t count, int64_t vocabulary) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(vocabulary));
  return ids;
}

// An answer and all that it left behind.
struct Outcome {
  Generated generated;
  std::string streamed;
  std::vector<int32_t> history;
  int64_t tokens = 0;
  std::vector<int64_t> rows;
  int64_t next_position = 0;
};

// Everything but how drafting went.
inline void expect_same(const Outcome& actual, const Outcome& expected) {
  EXPECT_EQ(actual.generated.ids, expected.generated.ids);
  EXPECT_EQ(actual.generated.text, expected.generated.text);
  EXPECT_EQ(stop_reason_name(actual.generated.reason), stop_reason_name(expected.generated.reason));
  EXPECT_EQ(actual.streamed, expected.streamed);
  EXPECT_EQ(actual.history, expected.history);
  EXPECT_EQ(actual.tokens, expected.tokens);
  EXPECT_EQ(actual.rows, expected.rows);
  EXPECT_EQ(actual.next_position, expected.next_position);
}

class Talk {
 public:
  Talk(const Context& context, const Model& model)
      : context_(context),
        model_(model),
        memory_(f32_rows(model.info().rows), context.device),
        positions_(model.positions()) {}

  // A group that reads these ids. Their history is complete before they are read.
  Sequence read(std::span<const int32_t> ids, const CancelToken& cancel = {}) {
    Sequence sequence;
    sequence.ids.assign(ids.begin(), ids.end());
    positions_->text(static_cast<int64_t>(ids.size()), sequence.tokens);
    history_.insert(history_.end(), ids.begin(), ids.end());
    sequence.memory = &memory_;
    sequence.attention = &attention_;
    sequence.cancel = cancel;
    return sequence;
  }
  GenerationState state() { return {model_, memory_, attention_, *positions_, history_}; }

  Outcome outcome(const Generated& generated, std::string streamed) const {
    Outcome outcome{generated, std::move(streamed), history_, memory_.token_count(),
                    {},        positions_->next()};
    for (int layer = 0; layer < memory_.layout().layers; ++layer) {
      outcome.rows.push_back(memory_.row_count(layer));
    }
    return outcome;
  }
  // The question in one group, and the answer, alone.
  Outcome ask(DecoderRunner& runner, std::span<const int32_t> question,
              const GenerateOptions& options, std::shared_ptr<Drafter> drafter = nullptr) {
    const Tensor hidden = runner.forward(read(question)).hidden;
    Generation generation(state(), options, std::move(drafter));
    std::string streamed;
    const Generated generated = generate(context_, runner, generation, model_.decoder(), hidden,
                                         [&](std::string_view piece) { streamed += piece; });
    return outcome(generated, std::move(streamed));
  }

  // A moment to come back to.
  struct Point {
    MemoryMark mark;
    std::unique_ptr<PositionCounter> positions;
    size_t history = 0;
  };
  Point here() const { return {memory_.mark(), positions_->clone(), history_.size()}; }
  void go_back(const Point& point) {
    memory_.rewind(point.mark);
    positions_ = point.positions->clone();
    history_.resize(point.history);
  }

  const Memory& memory() const { return memory_; }
  const std::vector<int32_t>& history() const { return history_; }
  int64_t next_position() const { return positions_->next(); }

 private:
  static RowLayout f32_rows(RowLayout layout) {
    layout.dtype = DType::f32;
    return layout;
  }

  Context context_;
  const Model& model_;
  FlatMemory memory_;
  DenseAttention attention_;
  std::unique_ptr<PositionCounter> positions_;
  std::vector<int32_t> history_;
};

// Proposes what a function says, and checks how its proposals are treated.
class ScriptedDrafter final : public Drafter {
 public:
  using Propose =
      std::function<Draft(std::span<const int32_t> text, int64_t most, int64_t deepest)>;
  explicit ScriptedDrafter(Propose propose, std::vector<int> states = {})
      : propose_(std::move(propose)), states_(std::move(states)) {}

  std::vector<int> states() const override { return states_; }
  Draft propose(std::span<const int32_t> text, int64_t most, int64_t deepest) override {
    EXPECT_GT(most, 0);
    EXPECT_GT(deepest, 0);
    draft_ = propose_(text, most, deepest);
    return draft_;
  }
  void learn(const CheckedDraft& checked) override {
    int32_t parent = -1;
    for (const int32_t place : checked.right) {
      EXPECT_EQ(draft_.parents.at(static_cast<size_t>(place)), parent);
      parent = place;
    }
    EXPECT_EQ(checked.states.size(), states_.size());
    for (const Tensor& state : checked.states) {
      EXPECT_EQ(state.size(0), static_cast<int64_t>(1 + draft_.ids.size()));
    }
    draft_ = {};
  }

 private:
  Propose propose_;
  std::vector<int> states_;
  Draft draft_;
};

inline Draft chain(std::span<const int32_t> ids) {
  Draft draft;
  for (const int32_t id : ids) {
    draft.parents.push_back(static_cast<int32_t>(draft.ids.size()) - 1);
    draft.ids.push_back(id);
  }
  return draft;
}

// A tree of random tokens with a chain of `truth` somewhere in it; no deeper than `deepest`.
inline Draft random_tree(Random& random, std::span<const int32_t> truth, int64_t nodes,
                         int64_t deepest, int64_t vocabulary) {
  Draft draft;
  std::vector<int64_t> depth;
  int32_t last = -1;  // of the truth
  size_t known = 0;
  while (static_cast<int64_t>(draft.ids.size()) < nodes) {
    const auto place = static_cast<int32_t>(draft.ids.size());
    const bool right =
        known < truth.size() && static_cast<int64_t>(known) < deepest && random.uniform() < 0.4;
    const int32_t parent = right ? last : static_cast<int32_t>(random.below(place + 1)) - 1;
    const int64_t below = parent < 0 ? 1 : depth[static_cast<size_t>(parent)] + 1;
    if (below > deepest) continue;
    draft.ids.push_back(right ? truth[known] : static_cast<int32_t>(random.below(vocabulary)));
    draft.parents.push_back(parent);
    depth.push_back(below);
    if (!right) continue;
    last = place;
    ++known;
  }
  return draft;
}

}  // namespace kinora::testing
