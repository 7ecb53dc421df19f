#include "memory/flat_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/threads.h"
#include "memory/test_support.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::accept_places;
using testing::all_devices;
using testing::append_group;
using testing::expect_layer;
using testing::expect_same;
using testing::Mirror;
using testing::RandomTree;
using testing::Stamps;
using testing::three_layers;
using testing::tokens_of;

// On a GPU, half of the time with the indexes there.
void retain(const Context& context, FlatMemory& memory, int layer, const std::vector<int32_t>& kept,
            bool there) {
  if (!there || memory.device().is_cpu()) return memory.retain(layer, kept);
  Tensor indexes(DType::i32, {static_cast<int64_t>(kept.size())}, memory.device());
  copy_bytes(indexes.view().raw(), memory.device(), kept.data(), Device::cpu(),
             kept.size() * sizeof(int32_t));
  memory.retain_there(context, layer, indexes);
}

void check_random_steps(Device device) {
  SCOPED_TRACE(to_string(device));
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(1);
  const Context context(threads, device);
  FlatMemory memory(three_layers, device);
  Stamps stamps;
  Mirror expected;
  struct Saved {
    MemoryMark mark;
    Mirror expected;
  };
  std::vector<Saved> marks;
  for (int step = 0; step < 400 && !::testing::Test::HasFatalFailure(); ++step) {
    const double choice = random.uniform();
    if (choice < 0.2) marks.push_back({memory.mark(), expected});
    if (choice > 0.85 && !marks.empty()) {
      const auto which = static_cast<size_t>(random.below(static_cast<int64_t>(marks.size())));
      memory.rewind(marks[which].mark);
      expected = marks[which].expected;
      marks.resize(which + 1);
    } else {
      const auto count = static_cast<int32_t>(1 + random.below(70));
      append_group(context, memory, expected, stamps.take(count));
      for (int layer = 0; layer < 3; ++layer) {
        if (random.uniform() < 0.5) continue;
        std::vector<int32_t> kept;
        auto& rows = expected.layers[static_cast<size_t>(layer)];
        const std::vector<Mirror::Row> group(rows.end() - count, rows.end());
        rows.resize(rows.size() - static_cast<size_t>(count));
        for (int32_t i = 0; i < count; ++i) {
          if (random.uniform() >= 0.4) continue;
          kept.push_back(i);
          rows.push_back(group[static_cast<size_t>(i)]);
        }
        retain(context, memory, layer, kept, random.uniform() < 0.5);
      }
    }
    // Not after every step: what a GPU has been asked to keep may then still be on its way.
    for (int layer = 0; layer < 3 && random.uniform() < 0.7; ++layer) {
      expect_layer(context, memory, expected, layer);
    }
  }
  expect_same(context, memory, expected);
  const MemoryBytes bytes = memory.bytes();
  EXPECT_EQ(bytes.total(), expected.rows() * 2 * 8 * 4);
  EXPECT_EQ(device.is_cpu() ? bytes.host : bytes.device, bytes.total());
  EXPECT_EQ(bytes.shared, 0);
}

TEST(FlatMemory, RowsFollowRandomAppendsPrunesAndRewinds) {
  for (const Device device : all_devices()) check_random_steps(device);
}

TEST(FlatMemory, AnInterruptedGroupCanBeRewound) {
  const ThreadPool threads(1);
  for (const Device device : all_devices()) {
    const Context context(threads, device);
    FlatMemory memory(three_layers, device);
    Stamps stamps;
    Mirror expected;
    append_group(context, memory, expected, stamps.take(5));
    const MemoryMark mark = memory.mark();
    const std::vector<TokenInfo> lost = tokens_of(stamps.take(3));
    memory.begin(context, {lost});
    memory.append(0);  // layers 1 and 2 never came to it
    memory.rewind(mark);
    append_group(context, memory, expected, stamps.take(2));
    expect_same(context, memory, expected);
  }
}

TEST(FlatMemory, RefusesMisuse) {
  const ThreadPool threads(1);
  const Context context(threads);
  FlatMemory memory(three_layers);
  Stamps stamps;
  Mirror expected;
  const std::vector<TokenInfo> two = tokens_of(stamps.take(2));
  const std::vector<int32_t> one{-1}, late{1, -1}, itself{-1, 1}, outside{-2, 0};
  EXPECT_THROW(memory.begin(context, {}), Error);
  EXPECT_THROW(memory.append(0), Error);
  EXPECT_THROW(memory.begin(context, {two, {}, 2}), Error);  // nothing but probes
  EXPECT_THROW(memory.begin(context, {two, {}, -1}), Error);
  EXPECT_THROW(memory.begin(context, {two, one}), Error);
  EXPECT_THROW(memory.begin(context, {two, late}), Error);
  EXPECT_THROW(memory.begin(context, {two, itself}), Error);
  EXPECT_THROW(memory.begin(context, {two, outside}), Error);
  EXPECT_EQ(memory.token_count(), 0);
  append_group(context, memory, expected, stamps.take(4));
  EXPECT_THROW(memory.append(0), Error);
  EXPECT_THROW(memory.append(3), std::exception);
  EXPECT_THROW(memory.state(0), Error);
  EXPECT_THROW(memory.retain(0, std::vector<int32_t>{1, 1}), Error);
  EXPECT_THROW(memory.retain(1, std::vector<int32_t>{0, 4}), Error);
  memory.retain(2, std::vector<int32_t>{3});
  EXPECT_THROW(memory.retain(2, std::vector<int32_t>{0}), Error);
  FlatMemory other(three_layers);
  EXPECT_THROW(other.rewind(memory.mark()), Error);
  EXPECT_THROW(other.fork(memory.mark()), Error);
  FlatMemory fewer(RowLayout{2, 2, 4, DType::f32});
  EXPECT_THROW(memory.rewind(fewer.mark()), Error);
  EXPECT_THROW(memory.fork(fewer.mark()), Error);
  EXPECT_THROW(FlatMemory(RowLayout{1, 1, 1, DType::i32}), Error);
  EXPECT_THROW(FlatMemory(RowLayout{0, 1, 1, DType::f32}), Error);
}

// The accepted path of a token tree is all that ever was.
TEST(FlatMemory, AcceptKeepsOnePathOfATree) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(1);
  for (const Device device : all_devices()) {
    SCOPED_TRACE(to_string(device));
    const Context context(threads, device);
    FlatMemory memory(three_layers, device);
    Stamps stamps;
    Mirror expected;
    for (int step = 0; step < 60 && !HasFatalFailure(); ++step) {
      append_group(context, memory, expected, stamps.take(1 + random.below(9)));
      const MemoryMark before = memory.mark();
      const Mirror old = expected;
      const int64_t count = 1 + random.below(65);
      const RandomTree tree(random, count);
      append_group(context, memory, expected, stamps.take(count), {.parents = tree.parents});
      expect_same(context, memory, expected);
      memory.accept(context, tree.path);
      accept_places(expected, static_cast<size_t>(count), tree.path);
      EXPECT_TRUE(memory.queries().parents.empty());
      expect_same(context, memory, expected);
      if (random.below(4) > 0) continue;
      memory.rewind(before);
      expected = old;
    }
    EXPECT_EQ(memory.bytes().total(), expected.rows() * 2 * 8 * 4);
  }
}

TEST(FlatMemory, AcceptKeepsAPrefixOfAChain) {
  const ThreadPool threads(1);
  for (const Device device : all_devices()) {
    const Context context(threads, device);
    FlatMemory memory(three_layers, device);
    Stamps stamps;
    Mirror expected;
    append_group(context, memory, expected, stamps.take(3));
    for (int32_t kept = 0; kept <= 7; ++kept) {
      append_group(context, memory, expected, stamps.take(7));
      std::vector<int32_t> prefix(static_cast<size_t>(kept));
      std::iota(prefix.begin(), prefix.end(), 0);
      memory.accept(context, prefix);
      accept_places(expected, 7, prefix);
      expect_same(context, memory, expected);
    }
    append_group(context, memory, expected, stamps.take(4));
    EXPECT_THROW(memory.accept(context, std::vector<int32_t>{2, 1}), Error);
    EXPECT_THROW(memory.accept(context, std::vector<int32_t>{4}), Error);
  }
}

// Probes help to choose rows, with or without a rule, and are gone with the next group.
TEST(FlatMemory, ProbesLeaveNothing) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(1);
  for (const Device device : all_devices()) {
    SCOPED_TRACE(to_string(device));
    const Context context(threads, device);
    for (const bool prunes : {false, true}) {
      const auto rule = std::make_shared<testing::GivenScores>();
      const Retention retention{prunes ? rule : nullptr, 0.5};
      FlatMemory memory(three_layers, device, retention);
      Stamps stamps;
      Mirror expected;
      for (int step = 0; step < 30 && !HasFatalFailure(); ++step) {
        const int64_t count = 1 + random.below(65), probes = random.below(9);
        const std::vector<int32_t> group = stamps.take(count + probes);
        std::vector<Modality> modalities;
        for (const TokenInfo& token : tokens_of(group)) modalities.push_back(token.modality);
        modalities.resize(static_cast<size_t>(count));
        const auto keeps = [&](int) {
          rule->given.clear();
          for (int64_t i = 0; i < count; ++i) rule->given.push_back(random.uniform());
          return choose_rows(retention, rule->given, modalities);
        };
        append_group(context, memory, expected, group, {.probes = probes, .keeps = keeps});
        EXPECT_EQ(memory.queries().ordinals.size(), static_cast<size_t>(count + probes));
        if (probes > 0) {
          EXPECT_THROW(memory.accept(context, std::vector<int32_t>{0}), Error);
        }
        expect_same(context, memory, expected);
        if (random.below(3) == 0) {
          memory.rewind(memory.mark());  // forgets probes too
          EXPECT_EQ(memory.token_count(), static_cast<int64_t>(expected.tokens.size()));
          expect_same(context, memory, expected);
        }
      }
      append_group(context, memory, expected, stamps.text(2));
      EXPECT_EQ(memory.token_count(), static_cast<int64_t>(expected.tokens.size()));
      expect_same(context, memory, expected);
    }
  }
}

TEST(FlatMemory, KnowsAheadWhatPruningDoesNotChange) {
  const ThreadPool threads(1);
  const Context context(threads);
  Stamps stamps;
  const std::vector<TokenInfo> text = tokens_of(stamps.text(3)), mixed = tokens_of(stamps.take(6));
  FlatMemory keeps(three_layers);
  keeps.begin(context, {mixed});
  EXPECT_TRUE(keeps.known_ahead());
  EXPECT_FALSE(keeps.needs_question());
  keeps.begin(context, {mixed, {}, 2});
  EXPECT_FALSE(keeps.known_ahead());
  FlatMemory prunes(three_layers, Device::cpu(), parse_retention("attention-score:0.5"));
  EXPECT_TRUE(prunes.needs_question());
  prunes.begin(context, {text});
  EXPECT_TRUE(prunes.known_ahead());
  prunes.begin(context, {mixed});
  EXPECT_FALSE(prunes.known_ahead());
  EXPECT_TRUE(prunes.prunes_frames());
  EXPECT_EQ(prunes.kept_of(10), 5);
  prunes.set_kept_share(0.1);
  EXPECT_EQ(prunes.kept_of(10), 1);
  EXPECT_EQ(prunes.kept_of(3), 1);
  EXPECT_FALSE(keeps.prunes_frames());
  EXPECT_EQ(keeps.kept_of(10), 10);
}

}  // namespace
}  // namespace kinora
