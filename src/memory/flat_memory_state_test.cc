// Layers that keep a state of fixed size instead of rows, between layers that keep rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/threads.h"
#include "memory/flat_memory.h"
#include "memory/test_support.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::all_devices;
using testing::append_group;
using testing::Mirror;
using testing::RandomTree;
using testing::Stamps;

constexpr int64_t state_size = 37;
using State = std::vector<uint8_t>;

const RowLayout hybrid{3, 2, 4, DType::f32, {0, state_size}};

State random_state(Random& random) {
  State state(static_cast<size_t>(state_size));
  for (uint8_t& value : state) value = static_cast<uint8_t>(random.below(256));
  return state;
}

State get(Memory& memory, int32_t node = -1) {
  const TensorView view = memory.state(1, node);
  EXPECT_EQ(view.shape(), Shape{state_size});
  State state(static_cast<size_t>(state_size));
  copy_bytes(state.data(), Device::cpu(), view.raw(), view.device(), state.size());
  return state;
}

void set(Memory& memory, const State& state, int32_t node = -1) {
  const TensorView view = memory.state(1, node);
  copy_bytes(view.raw(), view.device(), state.data(), Device::cpu(), state.size());
}

TEST(FlatMemoryState, MarksRestoreIt) {
  KINORA_FRESH_RANDOM(random);
  for (const Device device : all_devices()) {
    SCOPED_TRACE(to_string(device));
    FlatMemory memory(hybrid, device);
    struct Saved {
      MemoryMark mark;
      State state;
    };
    State expected(static_cast<size_t>(state_size), 0);
    std::vector<Saved> marks;
    for (int step = 0; step < 200; ++step) {
      ASSERT_EQ(get(memory), expected);
      const int64_t choice = random.below(3);
      if (choice == 0) marks.push_back({memory.mark(), expected});
      if (choice == 1) {
        expected = random_state(random);
        set(memory, expected);
      }
      if (choice == 2 && !marks.empty()) {
        const auto which = static_cast<size_t>(random.below(static_cast<int64_t>(marks.size())));
        memory.rewind(marks[which].mark);
        expected = marks[which].state;
        marks.resize(which + 1);
      }
    }
  }
}

TEST(FlatMemoryState, NodesOfATreeBeginAsTheirParents) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(1);
  for (const Device device : all_devices()) {
    SCOPED_TRACE(to_string(device));
    const Context context(threads, device);
    FlatMemory memory(hybrid, device);
    Stamps stamps;
    Mirror rows;
    State expected = random_state(random);
    set(memory, expected);
    for (int step = 0; step < 20 && !HasFatalFailure(); ++step) {
      const MemoryMark mark = memory.mark();
      const Mirror before = rows;
      const int64_t count = 1 + random.below(20);
      const bool chain = random.below(4) == 0;
      RandomTree tree(random, count);
      if (chain) {
        tree.parents.clear();
        tree.path.clear();
        const int64_t kept = 1 + random.below(count);
        for (int32_t i = 0; i < kept; ++i) tree.path.push_back(i);
      }
      append_group(context, memory, rows, stamps.take(count), {.parents = tree.parents});
      std::vector<State> nodes;
      for (int32_t node = 0; node < count; ++node) {
        const int32_t parent = chain ? node - 1 : tree.parents[static_cast<size_t>(node)];
        ASSERT_EQ(get(memory, node), parent < 0 ? expected : nodes[static_cast<size_t>(parent)]);
        nodes.push_back(random_state(random));
        set(memory, nodes.back(), node);
      }
      for (int32_t node = 0; node < count; ++node) {
        ASSERT_EQ(get(memory, node), nodes[static_cast<size_t>(node)]);
      }
      ASSERT_EQ(get(memory), expected);  // still that before the group
      if (random.below(3) == 0) {
        memory.rewind(mark);
        rows = before;
      } else {
        memory.accept(context, tree.path);
        rows.tokens.resize(before.tokens.size() + tree.path.size());
        expected = nodes[static_cast<size_t>(tree.path.back())];
      }
      ASSERT_EQ(get(memory), expected);
      ASSERT_EQ(memory.token_count(), static_cast<int64_t>(rows.tokens.size()));
      ASSERT_EQ(memory.row_count(0), memory.token_count());
    }
  }
}

TEST(FlatMemoryState, ForksShareItAndThenDiffer) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(1);
  for (const Device device : all_devices()) {
    SCOPED_TRACE(to_string(device));
    const Context context(threads, device);
    FlatMemory parent(hybrid, device);
    Stamps stamps;
    Mirror rows;
    const State first = random_state(random), second = random_state(random),
                third = random_state(random), fourth = random_state(random);
    append_group(context, parent, rows, stamps.take(3));
    set(parent, first);
    const MemoryMark early = parent.mark();
    append_group(context, parent, rows, stamps.take(2));
    set(parent, second);
    const std::unique_ptr<Memory> now = parent.fork(parent.mark()), then = parent.fork(early);
    EXPECT_EQ(get(*now), second);
    EXPECT_EQ(get(*then), first);
    set(*now, third);
    EXPECT_EQ(get(parent), second);
    EXPECT_EQ(get(*then), first);
    set(parent, fourth);
    EXPECT_EQ(get(*now), third);
    EXPECT_EQ(get(parent), fourth);
    parent.rewind(early);
    EXPECT_EQ(get(parent), first);
    EXPECT_EQ(get(*then), first);
    set(*then, fourth);
    EXPECT_EQ(get(parent), first);
    EXPECT_EQ(parent.bytes().total(), 3 * hybrid.bytes_per_token() + state_size);
  }
}

TEST(FlatMemoryState, RefusesRows) {
  const ThreadPool threads(1);
  const Context context(threads);
  FlatMemory memory(hybrid);
  Stamps stamps;
  const std::vector<TokenInfo> tokens = testing::tokens_of(stamps.take(2));
  memory.begin(context, {tokens});
  EXPECT_THROW(memory.append(1), Error);
  EXPECT_THROW(memory.state(0), Error);
  EXPECT_THROW(memory.state(1, 2), std::exception);
  EXPECT_EQ(memory.row_count(1), 0);
  EXPECT_EQ(hybrid.bytes_per_token(), 2 * 2 * 8 * 4);
}

}  // namespace
}  // namespace kinora
