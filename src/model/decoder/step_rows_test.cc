// What sequences read in a step, told to the device: every row once, whoever shares it.
#include "model/decoder/step_rows.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "memory/flat_memory.h"
#include "support/random_data.h"

namespace kinora {
namespace {

constexpr int layers = 3;
const RowLayout layout{layers, 2, 8, DType::f32};
constexpr int64_t row_bytes = 2 * 8 * 4;

class StepRowsTest : public ::testing::Test {
 protected:
  struct Asking {
    std::unique_ptr<Memory> memory;
    std::vector<TokenInfo> tokens;
    Sequence sequence;
    std::span<const Position> positions;
    Forwarded result;
  };

  std::unique_ptr<Memory> video(int64_t rows) {
    auto memory = std::make_unique<FlatMemory>(layout);
    const std::vector<TokenInfo> tokens(static_cast<size_t>(rows));
    memory->begin(context_, {.tokens = tokens});
    for (int layer = 0; layer < layers; ++layer) memory->append(layer);
    return memory;
  }
  // A conversation that has `said` rows of its own and is about to read `count` tokens.
  std::unique_ptr<Asking> conversation(Memory& about, int64_t said, int64_t count) {
    auto asking = std::make_unique<Asking>();
    asking->memory = about.fork(about.mark());
    if (said > 0) {
      const std::vector<TokenInfo> tokens(static_cast<size_t>(said));
      asking->memory->begin(context_, {.tokens = tokens});
      for (int layer = 0; layer < layers; ++layer) asking->memory->append(layer);
    }
    return begun(std::move(asking), count);
  }
  std::unique_ptr<Asking> begun(std::unique_ptr<Asking> asking, int64_t count) {
    asking->tokens.resize(static_cast<size_t>(count));
    asking->positions = asking->memory->begin(context_, {.tokens = asking->tokens});
    asking->sequence.tokens = asking->tokens;
    asking->sequence.ids.resize(static_cast<size_t>(count));
    asking->sequence.memory = asking->memory.get();
    return asking;
  }

  static std::vector<DeviceSequence> entries(int64_t padded,
                                             const std::function<void(std::byte*)>& write) {
    std::vector<DeviceSequence> table(static_cast<size_t>(layers * padded));
    write(reinterpret_cast<std::byte*>(table.data()));
    return table;
  }
  // The addresses of a sequence's keys, in reading order.
  static void add_rows(const DeviceSequence& sequence, std::vector<const std::byte*>& rows) {
    for (const DeviceRowSet& set : sequence.sets) {
      for (int64_t i = 0; i < set.count; ++i) {
        rows.push_back(static_cast<const std::byte*>(set.keys) + i * row_bytes);
      }
    }
  }

  ThreadPool pool_{1};
  Context context_{pool_};
};

TEST_F(StepRowsTest, NeighboursInAGroupReadTheSameRowsAsAlone) {
  KINORA_FRESH_RANDOM(random);
  const auto first = video(1200), second = video(700), brief = video(40);
  std::vector<std::unique_ptr<Asking>> all;
  for (int i = 0; i < 9; ++i) {
    Memory& about = i % 3 == 0 ? *first : i % 3 == 1 ? *second : *brief;
    all.push_back(conversation(about, random.below(30), 1 + random.below(4)));
  }
  std::vector<DecoderSteps::Step> steps;
  for (const auto& asking : all) {
    steps.push_back({&asking->sequence, asking->positions, &asking->result});
  }
  StepRows rows(context_, steps, layers);
  ASSERT_EQ(rows.steps().size(), all.size());
  rows.share(row_bytes);
  EXPECT_EQ(rows.groups(), 2);  // the brief video is not worth it

  const int64_t sequences = 12, groups = 4;
  const auto whole = entries(sequences, [&](std::byte* to) { rows.write_whole(to, sequences); });
  const auto rest = entries(sequences, [&](std::byte* to) { rows.write_rest(to, sequences); });
  const auto shared = entries(groups, [&](std::byte* to) { rows.write_groups(to, groups); });
  int64_t most = 0;
  for (int layer = 0; layer < layers; ++layer) {
    int32_t token = 0;
    for (size_t i = 0; i < rows.steps().size(); ++i) {
      const DeviceSequence& alone = whole[static_cast<size_t>(layer * sequences) + i];
      const DeviceSequence& left = rest[static_cast<size_t>(layer * sequences) + i];
      EXPECT_EQ(alone.first_token, token);
      EXPECT_EQ(left.first_token, token);
      EXPECT_EQ(left.tokens, alone.tokens);
      EXPECT_EQ(alone.tokens, rows.steps()[i].sequence->count());
      std::vector<const std::byte*> expected, actual;
      add_rows(alone, expected);
      for (int64_t g = 0; g < groups; ++g) {
        const DeviceSequence& group = shared[static_cast<size_t>(layer * groups + g)];
        most = std::max<int64_t>(most, group.tokens);
        if (group.tokens == 0 || token < group.first_token ||
            token >= group.first_token + group.tokens) {
          continue;
        }
        EXPECT_EQ(group.own, no_own_rows);
        add_rows(group, actual);
      }
      add_rows(left, actual);
      EXPECT_EQ(actual, expected) << "layer " << layer << ", sequence " << i;
      token += alone.tokens;
    }
  }
  EXPECT_EQ(rows.most_group_tokens(), most);
}

TEST_F(StepRowsTest, OneConversationSharesNothing) {
  const auto about = video(2000);
  const auto asking = conversation(*about, 3, 2);
  const std::vector<DecoderSteps::Step> steps{
      {&asking->sequence, asking->positions, &asking->result}};
  StepRows rows(context_, steps, layers);
  rows.share(row_bytes);
  EXPECT_EQ(rows.groups(), 0);
  EXPECT_EQ(rows.all_rows(), 2005);
}

// Others go on; its tokens are nobody's.
TEST_F(StepRowsTest, AConversationThatIsCancelledLeavesAGap) {
  const auto about = video(900);
  std::vector<std::unique_ptr<Asking>> all;
  for (int i = 0; i < 3; ++i) all.push_back(conversation(*about, 0, 2));
  all[1]->sequence.cancel.cancel();
  std::vector<DecoderSteps::Step> steps;
  for (const auto& asking : all) {
    steps.push_back({&asking->sequence, asking->positions, &asking->result});
  }
  StepRows rows(context_, steps, layers);
  rows.share(row_bytes);
  EXPECT_TRUE(all[1]->result.failure);
  EXPECT_FALSE(all[0]->result.failure);
  EXPECT_EQ(rows.tokens(), 6);
  EXPECT_EQ(rows.groups(), 1);
  EXPECT_EQ(rows.most_group_tokens(), 4);
}

}  // namespace
}  // namespace kinora
