// Forks of a memory: what lies before the mark is held once and never changes, what follows is each
// side's own.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/threads.h"
#include "memory/flat_memory.h"
#include "memory/test_support.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::accept_places;
using testing::all_devices;
using testing::append_group;
using testing::expect_same;
using testing::GivenScores;
using testing::Mirror;
using testing::RandomTree;
using testing::Stamps;
using testing::three_layers;
using testing::tokens_of;

constexpr int64_t token_bytes = 3 * 2 * 8 * 4;  // a row in every layer

struct Branch {
  struct Saved {
    MemoryMark mark;
    Mirror mirror;
  };
  std::unique_ptr<Memory> memory;
  Mirror mirror;
  std::vector<Saved> marks;
};

class Forest {
 public:
  Forest(Random& random, Device device)
      : random_(random),
        threads_(1),
        context_(threads_, device),
        rule_(std::make_shared<GivenScores>()),
        retention_{rule_, 0.5} {
    branches_.push_back({std::make_unique<FlatMemory>(three_layers, device, retention_), {}, {}});
  }

  void step() {
    const size_t which = any(branches_.size());
    Branch& branch = branches_[which];
    const double choice = random_.uniform();
    if (choice < 0.35) {
      append_pruned(branch);
    } else if (choice < 0.5) {
      append_tree(branch);
    } else if (choice < 0.65) {
      branch.marks.push_back({branch.memory->mark(), branch.mirror});
    } else if (choice < 0.8) {
      rewind(branch);
    } else if (choice < 0.92) {
      fork(which);
    } else if (branches_.size() > 1) {
      branches_.erase(branches_.begin() + static_cast<int64_t>(which));
    }
  }
  void expect_all() {
    for (Branch& branch : branches_) expect_same(context_, *branch.memory, branch.mirror);
  }

 private:
  size_t any(size_t count) {
    return static_cast<size_t>(random_.below(static_cast<int64_t>(count)));
  }

  void append_pruned(Branch& branch) {
    const std::vector<int32_t> group = stamps_.take(1 + random_.below(20));
    std::vector<Modality> modalities;
    for (const TokenInfo& token : tokens_of(group)) modalities.push_back(token.modality);
    const auto keeps = [&](int) {
      rule_->given.clear();
      for (size_t i = 0; i < group.size(); ++i) rule_->given.push_back(random_.uniform());
      return choose_rows(retention_, rule_->given, modalities);
    };
    append_group(context_, *branch.memory, branch.mirror, group, {.keeps = keeps});
  }
  void append_tree(Branch& branch) {
    const int64_t count = 1 + random_.below(9);
    const RandomTree tree(random_, count);
    append_group(context_, *branch.memory, branch.mirror, stamps_.text(count),
                 {.parents = tree.parents});
    if (random_.below(4) == 0) return;
    branch.memory->accept(context_, tree.path);
    accept_places(branch.mirror, static_cast<size_t>(count), tree.path);
  }
  void rewind(Branch& branch) {
    if (branch.marks.empty()) return;
    const size_t which = any(branch.marks.size());
    branch.memory->rewind(branch.marks[which].mark);
    branch.mirror = branch.marks[which].mirror;
    branch.marks.resize(which + 1);
  }
  void fork(size_t which) {
    if (branches_.size() > 7) return;
    Branch& parent = branches_[which];
    const bool now = parent.marks.empty() || random_.below(3) == 0;
    const Branch::Saved from = now ? Branch::Saved{parent.memory->mark(), parent.mirror}
                                   : parent.marks[any(parent.marks.size())];
    Branch branch{parent.memory->fork(from.mark), from.mirror, {}};
    expect_same(context_, *branch.memory, branch.mirror);
    EXPECT_EQ(branch.memory->bytes().shared, branch.memory->bytes().total());
    branches_.push_back(std::move(branch));
  }

  Random& random_;
  const ThreadPool threads_;
  const Context context_;
  std::shared_ptr<GivenScores> rule_;
  Retention retention_;
  Stamps stamps_;
  std::vector<Branch> branches_;
};

TEST(FlatMemoryForks, FollowRandomSteps) {
  for (const Device device : all_devices()) {
    SCOPED_TRACE(to_string(device));
    KINORA_FRESH_RANDOM(random);
    for (int trial = 0; trial < 5; ++trial) {
      Forest forest(random, device);
      for (int step = 0; step < 150 && !HasFatalFailure(); ++step) {
        forest.step();
        if (random.below(4) == 0) forest.expect_all();
      }
      forest.expect_all();
    }
  }
}

TEST(FlatMemoryForks, ShareWhatLiesBeforeTheMark) {
  const ThreadPool threads(1);
  for (const Device device : all_devices()) {
    SCOPED_TRACE(to_string(device));
    const Context context(threads, device);
    FlatMemory parent(three_layers, device);
    Stamps stamps;
    Mirror expected;
    append_group(context, parent, expected, stamps.take(6));
    const Mirror before = expected;
    const MemoryMark mark = parent.mark();
    append_group(context, parent, expected, stamps.take(4));
    EXPECT_EQ(parent.bytes().shared, 0);

    const std::unique_ptr<Memory> fork = parent.fork(mark);
    Mirror forked = before;
    EXPECT_EQ(fork->bytes().total(), 6 * token_bytes);
    EXPECT_EQ(fork->bytes().shared, 6 * token_bytes);
    EXPECT_EQ(parent.bytes().total(), 10 * token_bytes);
    std::vector<RowSet> theirs, mine;
    parent.read(context, 1, parent.queries(), theirs);
    fork->read(context, 1, fork->queries(), mine);
    ASSERT_EQ(mine.size(), 1u);
    EXPECT_EQ(mine[0].keys.raw(), theirs[0].keys.raw());  // held once

    append_group(context, *fork, forked, stamps.take(3));
    expect_same(context, *fork, forked);
    expect_same(context, parent, expected);
    EXPECT_EQ(fork->bytes().total(), 9 * token_bytes);
    EXPECT_EQ(fork->bytes().shared, 6 * token_bytes);
    append_group(context, parent, expected, stamps.take(5));
    expect_same(context, *fork, forked);
    expect_same(context, parent, expected);

    // Back into what is shared, and on from there.
    parent.rewind(mark);
    expected = before;
    expect_same(context, parent, expected);
    append_group(context, parent, expected, stamps.take(7));
    expect_same(context, parent, expected);
    expect_same(context, *fork, forked);
    EXPECT_EQ(parent.bytes().shared, 6 * token_bytes);
  }
}

TEST(FlatMemoryForks, SharesNothingAnyMoreOnceTheLastForkIsGone) {
  const ThreadPool threads(1);
  for (const Device device : all_devices()) {
    const Context context(threads, device);
    FlatMemory parent(three_layers, device);
    Stamps stamps;
    Mirror expected;
    append_group(context, parent, expected, stamps.take(6));
    std::unique_ptr<Memory> one = parent.fork(parent.mark());
    std::unique_ptr<Memory> two = parent.fork(parent.mark());
    append_group(context, parent, expected, stamps.take(3));
    EXPECT_EQ(parent.bytes().shared, 6 * token_bytes);
    one.reset();
    EXPECT_EQ(parent.bytes().shared, 6 * token_bytes);
    two.reset();
    EXPECT_EQ(parent.bytes().shared, 0);
    EXPECT_EQ(parent.bytes().total(), 9 * token_bytes);
    expect_same(context, parent, expected);
  }
}

TEST(FlatMemoryForks, OutliveTheirParent) {
  const ThreadPool threads(1);
  for (const Device device : all_devices()) {
    const Context context(threads, device);
    auto parent = std::make_unique<FlatMemory>(three_layers, device);
    Stamps stamps;
    Mirror expected;
    append_group(context, *parent, expected, stamps.take(65));
    const std::unique_ptr<Memory> fork = parent->fork(parent->mark());
    parent.reset();
    append_group(context, *fork, expected, stamps.take(2));
    expect_same(context, *fork, expected);
  }
}

// However deep forks are nested, a query reads no more sets than attention takes.
TEST(FlatMemoryForks, NestDeeply) {
  const ThreadPool threads(1);
  for (const Device device : all_devices()) {
    SCOPED_TRACE(to_string(device));
    const Context context(threads, device);
    Stamps stamps;
    std::vector<Branch> chain;
    chain.push_back({std::make_unique<FlatMemory>(three_layers, device), {}, {}});
    for (int depth = 0; depth < 12 && !HasFatalFailure(); ++depth) {
      append_group(context, *chain.back().memory, chain.back().mirror, stamps.take(3 + depth));
      Memory& parent = *chain.back().memory;
      Branch next{parent.fork(parent.mark()), chain.back().mirror, {}};
      append_group(context, parent, chain.back().mirror, stamps.take(2));
      chain.push_back(std::move(next));
      for (Branch& branch : chain) expect_same(context, *branch.memory, branch.mirror);
    }
  }
}

TEST(FlatMemoryForks, AnInterruptedGroupIsNotTheForks) {
  const ThreadPool threads(1);
  const Context context(threads);
  FlatMemory parent(three_layers);
  Stamps stamps;
  Mirror expected;
  append_group(context, parent, expected, stamps.take(5));
  const MemoryMark mark = parent.mark();
  const std::vector<TokenInfo> lost = tokens_of(stamps.take(3));
  parent.begin(context, {lost});
  parent.append(0);  // layers 1 and 2 never came to it
  const std::unique_ptr<Memory> fork = parent.fork(mark);
  parent.rewind(mark);
  Mirror forked = expected;
  append_group(context, *fork, forked, stamps.take(2));
  append_group(context, parent, expected, stamps.take(3));
  expect_same(context, *fork, forked);
  expect_same(context, parent, expected);
}

}  // namespace
}  // namespace kinora
