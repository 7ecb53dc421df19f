#include "memory/compact_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "memory/partial/partial_test_support.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::group_of;
using testing::plain_queries_of;
using testing::plain_row;
using testing::play;
using testing::ReadRows;
using testing::ScriptGroup;
using testing::text_tokens;
using testing::turned;
using testing::turning_layout;
using testing::video_tokens;

constexpr int layers = 10;
constexpr int64_t budget = 21;

RowLayout ten_layers() {
  RowLayout layout = turning_layout();
  layout.layers = layers;
  return layout;
}

// What must stay, worked out token by token.
struct Reference {
  struct Row {
    int32_t ordinal = 0;
    uint64_t stamp = 0;
    TokenInfo token;
  };
  std::vector<std::vector<Row>> rows = std::vector<std::vector<Row>>(layers);
  const ScriptGroup* prompt = nullptr;  // its text is the generic question
  KeepBy by = KeepBy::depth;
  int32_t tokens = 0;

  void add(const ScriptGroup& group) {
    for (int layer = 0; layer < layers; ++layer) {
      auto& all = rows[static_cast<size_t>(layer)];
      for (size_t i = 0; i < group.tokens.size(); ++i) {
        all.push_back({tokens + static_cast<int32_t>(i), group.stamps[i], group.tokens[i]});
      }
    }
    tokens += static_cast<int32_t>(group.tokens.size());
    if (group.tokens.back().modality == Modality::text) return;
    for (int layer = 0; layer < layers; ++layer) reduce(layer, group.tokens.back().position[0] + 1);
  }

  void reduce(int layer, int32_t now) {
    auto& all = rows[static_cast<size_t>(layer)];
    std::vector<double> attention(all.size());
    const std::vector<float> plain = plain_queries_of(*prompt, layer);
    for (size_t query = 0; query < prompt->tokens.size(); ++query) {
      if (prompt->tokens[query].modality != Modality::text) continue;
      for (size_t head = 0; head < 4; ++head) {
        const auto begin = plain.begin() + static_cast<int64_t>((query * 4 + head) * 6);
        const Position here{now, now, now};
        const auto asked = turned({begin, begin + 6}, {&here, 1}, turning_layout());
        std::vector<double> shares(all.size());
        double sum = 0;
        for (size_t i = 0; i < all.size(); ++i) {
          if (all[i].token.modality == Modality::text) continue;
          const auto key = turned(plain_row(all[i].stamp, layer, false),
                                  {&all[i].token.position, 1}, turning_layout());
          double dot = 0;
          for (size_t k = 0; k < 6; ++k) dot += double{asked[k]} * double{key[head / 2 * 6 + k]};
          sum += shares[i] = std::exp(dot / std::sqrt(6.0));
        }
        for (size_t i = 0; i < all.size(); ++i) attention[i] += shares[i] / sum;
      }
    }
    const double most = *std::max_element(attention.begin(), attention.end());
    // Ten layers: the first by recency alone, the last three by attention alone.
    const double blend = layer == 0 ? 1 : layer >= 7 ? 0 : 1 - 0.9 * (layer - 1) / 6.0;
    const double recency = by == KeepBy::attention ? 0 : blend;
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].token.modality == Modality::text) continue;
      const double age = static_cast<double>(all.size() - 1 - i) / double{budget};
      order.emplace_back(-recency * std::exp(-age) - (1 - recency) * attention[i] / most, i);
    }
    std::sort(order.begin(), order.end());
    std::vector<bool> lost(all.size());
    for (size_t i = budget; i < order.size(); ++i) lost[order[i].second] = true;
    size_t place = 0;
    std::erase_if(all, [&](const Row&) { return lost[place++]; });
  }
};

class KeptRowsOf : public ::testing::TestWithParam<KeepBy> {};

TEST_P(KeptRowsOf, ACompactMemoryAreTheBestOnes) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(1);
  const Context context(threads);
  CompactMemory memory(ten_layers(), Device::cpu(), {}, {.rows = budget, .by = GetParam()});
  std::vector<TokenInfo> first = text_tokens(0, 3);
  const auto pictures = video_tokens(3, 4, 2, 2, 2);
  first.insert(first.end(), pictures.begin(), pictures.end());
  const ScriptGroup prompt = group_of(random, std::move(first));
  Reference reference;
  reference.prompt = &prompt;
  reference.by = GetParam();
  play(context, memory, prompt);
  reference.add(prompt);
  int64_t most = 0;
  for (int32_t picture = 4; picture < 40; picture += 4) {
    const ScriptGroup group = group_of(random, video_tokens(3, 4, 2, 2, 2, picture));
    play(context, memory, group);
    reference.add(group);
    most = std::max(most, memory.bytes().total());
  }
  EXPECT_EQ(most, memory.bytes().total());  // it does not grow
  const ScriptGroup question = group_of(random, text_tokens(83, 4));
  const std::vector<ReadRows> read = play(context, memory, question);
  reference.add(question);
  for (int layer = 0; layer < layers; ++layer) {
    const auto& expected = reference.rows[static_cast<size_t>(layer)];
    const ReadRows& rows = read[static_cast<size_t>(layer)];
    ASSERT_EQ(rows.ordinals.size(), 3 + budget + 4);
    ASSERT_EQ(memory.row_count(layer), 3 + budget + 4);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(rows.ordinals[i], expected[i].ordinal) << "layer " << layer;
      const auto key = turned(plain_row(expected[i].stamp, layer, false),
                              {&expected[i].token.position, 1}, turning_layout());
      for (size_t k = 0; k < key.size(); ++k) {
        ASSERT_NEAR(rows.keys[i * key.size() + k], key[k], 1e-5);
      }
    }
  }
  EXPECT_FALSE(memory.reads_near());
}

INSTANTIATE_TEST_SUITE_P(Ways, KeptRowsOf, ::testing::Values(KeepBy::depth, KeepBy::attention));

// However often keys are moved, they end up where near_positions puts their tokens.
TEST(CompactMemory, MovesRowsTogether) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(1);
  const Context context(threads);
  CompactMemory memory(turning_layout(), Device::cpu(), {},
                       {.rows = 10, .positions = Placing::consecutive});
  EXPECT_TRUE(memory.reads_near());
  std::vector<uint64_t> stamps;
  const auto add = [&](const std::vector<TokenInfo>& tokens) {
    const ScriptGroup group = group_of(random, tokens);
    stamps.insert(stamps.end(), group.stamps.begin(), group.stamps.end());
    return play(context, memory, group);
  };
  add(text_tokens(0, 2));
  for (int32_t picture = 0; picture < 24; picture += 3) add(video_tokens(2, 3, 2, 2, 2, picture));
  const auto read = add(text_tokens(50, 2));
  FrameTable frames;
  frames.update(memory, 0, memory.token_count());
  for (int layer = 0; layer < 2; ++layer) {
    const ReadRows& rows = read[static_cast<size_t>(layer)];
    ASSERT_EQ(rows.ordinals.size(), 14u);
    const std::vector<int32_t> kept(rows.ordinals.begin(), rows.ordinals.end() - 2);
    const auto placed = near_positions(memory, frames, kept, rows.ordinals[12]);
    for (size_t i = 0; i < kept.size(); ++i) {
      const auto stamp = stamps[static_cast<size_t>(kept[i])];
      const auto key = turned(plain_row(stamp, layer, false), {&placed[i], 1}, turning_layout());
      for (size_t k = 0; k < key.size(); ++k) {
        ASSERT_NEAR(rows.keys[i * key.size() + k], key[k], 1e-4) << "row " << i;
      }
    }
  }
}

TEST(CompactMemory, RefusesLayersThatKeepAState) {
  RowLayout layout = turning_layout();
  layout.state_bytes = {0, 16};
  EXPECT_THROW(CompactMemory(layout, Device::cpu(), {}, {}), Error);
}

}  // namespace
}  // namespace kinora
