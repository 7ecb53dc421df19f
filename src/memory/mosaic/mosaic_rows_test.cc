// What a question reads of a mosaic memory, and what stands for the rest.
#include "memory/mosaic/mosaic_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "attention/policies/dense.h"
#include "attention/row_sets.h"
#include "memory/partial/partial_test_support.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::group_of;
using testing::joined_sets;
using testing::next_position;
using testing::plain_row;
using testing::play;
using testing::ReadRows;
using testing::ScriptGroup;
using testing::text_tokens;
using testing::turning_layout;
using testing::turning_width;
using testing::video_tokens;

// A mosaic memory that always chooses, also where everything would fit.
std::unique_ptr<PartialMemory> always_choosing(const MosaicOptions& options,
                                               const RowLayout& layout = turning_layout(),
                                               Device device = Device::cpu()) {
  PartialOptions reading = options.reading;
  reading.rows = 1;
  return std::make_unique<PartialMemory>(std::make_unique<FlatMemory>(layout, device),
                                         std::make_unique<MosaicRows>(options, layout, device),
                                         reading);
}

class MosaicRowsTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    std::string why;
    if (GetParam() && cuda_devices(&why).empty()) GTEST_SKIP() << why;
  }
  // Text and pictures of 2 × 2 tokens, four at a time.
  void watch(Random& random, std::span<Memory* const> memories, int pictures) {
    std::vector<TokenInfo> tokens = text_tokens(0, 3);
    for (int first = 0; first < pictures; first += 4) {
      const auto video = video_tokens(3, std::min(4, pictures - first), 2, 2, 2, first);
      tokens.insert(tokens.end(), video.begin(), video.end());
      const ScriptGroup group = group_of(random, std::exchange(tokens, {}));
      for (Memory* memory : memories) play(context_, *memory, group);
    }
  }

  // [tokens, heads, 6]
  Tensor placed(const std::vector<float>& queries) const {
    const int64_t tokens = std::ssize(queries) / (testing::turning_heads * 6);
    Tensor out(DType::f32, {tokens, testing::turning_heads, 6}, device_);
    copy_bytes(out.view().raw(), device_, queries.data(), Device::cpu(), queries.size() * 4);
    return out;
  }

  const ThreadPool threads_{2};
  const Device device_ = GetParam() ? Device::cuda() : Device::cpu();
  const Context context_{threads_, device_};
};
INSTANTIATE_TEST_SUITE_P(Devices, MosaicRowsTest, ::testing::Bool(),
                         [](const auto& which) { return which.param ? "gpu" : "cpu"; });

// All clusters fetched at original positions, everything read while frames came: full attention.
TEST_P(MosaicRowsTest, AllClustersAreAllRows) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t resident : {0, 20}) {
    MosaicOptions options;
    options.reading.positions = Placing::original;
    options.recent = random.below(30);
    options.rules.cluster_rows = 2 + random.below(20);
    options.rules.resident = resident;
    const auto mosaic = always_choosing(options, turning_layout(), device_);
    FlatMemory flat(turning_layout(), device_);
    Memory* both[] = {mosaic.get(), &flat};
    watch(random, both, 50);
    const ScriptGroup question = group_of(random, text_tokens(next_position(flat), 5));
    const auto read = play(context_, *mosaic, question), expected = play(context_, flat, question);
    for (size_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(read[layer].ordinals, expected[layer].ordinals);
      EXPECT_EQ(read[layer].keys, expected[layer].keys);
      EXPECT_EQ(read[layer].values, expected[layer].values);
      EXPECT_EQ(read[layer].weights, expected[layer].weights);
    }
  }
}

// Rows and those that stand for others are within the budget and leave no row out.
TEST_P(MosaicRowsTest, KeepsTheBudgetAndLeavesNothingOut) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t rows : {1, 5, 24, 60, 130}) {
    MosaicOptions options;
    options.reading.rows = rows;
    options.recent = random.below(12);
    options.search = random.below(300);
    options.rank = random.below(2) == 0 ? ClusterRank::mass : ClusterRank::mean;
    options.visual = random.below(2) == 0 ? VisualMatch::query : VisualMatch::embedding;
    options.rules.cluster_rows = 8;
    const auto memory = always_choosing(options, turning_layout(), device_);
    Memory* one[] = {memory.get()};
    watch(random, one, 50);
    const auto read = play(context_, *memory, group_of(random, text_tokens(200, 5)));
    for (const ReadRows& layer : read) {
      const auto frames = static_cast<int64_t>(layer.ordinals.size()) - 8;  // but the text
      EXPECT_LE(frames, rows);
      // A quarter may be kept for stand-ins, and no cluster that is left fits into the rest. Where
      // only some visual clusters are searched, these may hold fewer rows.
      if (options.search == 0 || options.search >= 200) {
        EXPECT_GE(frames, rows - rows / 4 - 7);
      }
      EXPECT_LE(layer.sets, 3u);
      std::vector<int32_t> ordinals = layer.ordinals;
      std::sort(ordinals.begin(), ordinals.end());
      EXPECT_EQ(std::adjacent_find(ordinals.begin(), ordinals.end()), ordinals.end());
      const double stood_for = std::accumulate(layer.weights.begin(), layer.weights.end(), 0.0);
      EXPECT_LE(stood_for, 208);
      EXPECT_TRUE(rows < 130 || stood_for == 208) << stood_for;
    }
  }
}

// A stream of few kinds of rows, and keys that do not turn: a cluster's rows are all the same, so
// what stands for them gets exactly their attention.
TEST_P(MosaicRowsTest, EqualRowsLoseNothing) {
  KINORA_FRESH_RANDOM(random);
  RowLayout layout = turning_layout();
  layout.rotary.frequencies.assign(3, 0.0);
  MosaicOptions options;
  options.reading.rows = 40;
  options.recent = 4;
  options.rules.cluster_rows = 64;
  options.rules.semantic = {.strict = 1e-4, .loose = 1e-4};
  options.rules.visual = {.strict = 10, .loose = 10};  // one visual cluster
  const auto mosaic = always_choosing(options, layout, device_);
  FlatMemory flat(layout, device_);
  std::vector<uint64_t> kinds(7);
  for (uint64_t& kind : kinds) kind = random.next();
  Memory* both[] = {mosaic.get(), &flat};
  for (int32_t first = 0; first < 60; first += 4) {
    ScriptGroup group = group_of(random, video_tokens(3, 4, 2, 2, 2, first));
    for (uint64_t& stamp : group.stamps) {
      stamp = kinds[static_cast<size_t>(random.below(7))];
    }
    for (Memory* memory : both) play(context_, *memory, group);
  }
  const ScriptGroup question = group_of(random, text_tokens(200, 3));
  std::vector<Tensor> outputs;
  for (Memory* memory : both) {
    memory->begin(context_, {question.tokens});
    const NewRows fresh = memory->append(0);
    std::vector<float> keys, values;
    for (const uint64_t stamp : question.stamps) {
      const auto key = plain_row(stamp, 0, false), value = plain_row(stamp, 0, true);
      keys.insert(keys.end(), key.begin(), key.end());
      values.insert(values.end(), value.begin(), value.end());
    }
    copy_bytes(fresh.keys.raw(), device_, keys.data(), Device::cpu(), keys.size() * 4);
    copy_bytes(fresh.values.raw(), device_, values.data(), Device::cpu(), values.size() * 4);
    const Tensor queries = placed(testing::plain_queries_of(question, 0));
    QueryView view = memory->queries();
    view.queries = queries.view();
    std::vector<RowSet> sets;
    memory->read(context_, 0, view, sets);
    const size_t rows = joined_sets(sets).ordinals.size();
    if (memory == &flat) {
      EXPECT_EQ(rows, 243u);
    } else {
      EXPECT_LE(rows, 43u);
    }
    Tensor output(DType::f32, Shape{3, testing::turning_heads, 6}, device_);
    DenseAttention dense;
    attend_sets(dense, context_, 0, view, sets, 0.4f, output);
    outputs.push_back(output.to(Device::cpu()));
  }
  for (int64_t i = 0; i < outputs[0].elements(); ++i) {
    EXPECT_NEAR(outputs[0].data<float>()[i], outputs[1].data<float>()[i], 2e-5);
  }
}

// The part of a key that the first head meets.
std::vector<float> first_head_key(uint64_t stamp) {
  std::vector<float> key = plain_row(stamp, 0, false);
  key.resize(6);
  return key;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// Rows that a query looks for are fetched, wherever they are. The needle's key is long and no other
// goes half as far along it, so neither one of them nor a mean of them can be what the query meant.
TEST_P(MosaicRowsTest, FindsWhatTheQuestionLooksFor) {
  KINORA_FRESH_RANDOM(random);
  for (const ClusterRank rank : {ClusterRank::mass, ClusterRank::mean}) {
    MosaicOptions options;
    options.reading.rows = 32;
    options.rank = rank;
    const auto memory = always_choosing(options, turning_layout(), device_);
    const auto needle = static_cast<int32_t>(random.below(49));
    uint64_t needle_stamp = random.next();
    while (dot(first_head_key(needle_stamp), first_head_key(needle_stamp)) < 6) {
      needle_stamp = random.next();
    }
    const std::vector<float> key = first_head_key(needle_stamp);
    for (int32_t picture = 0; picture < 50; ++picture) {
      ScriptGroup group = group_of(random, video_tokens(3, 1, 2, 2, 2, picture));
      for (uint64_t& stamp : group.stamps) {
        while (dot(first_head_key(stamp), key) > 0.5 * dot(key, key)) stamp = random.next();
        if (picture == needle) stamp = needle_stamp;
      }
      play(context_, *memory, group);
    }
    // One query of many, a long way along the needle's key.
    const std::vector<TokenInfo> tokens = text_tokens(200, 2);
    memory->begin(context_, {tokens});
    memory->append(0);
    std::vector<float> queries(2 * testing::turning_heads * 6);
    for (float& x : queries) x = static_cast<float>(0.1 * random.normal());
    for (size_t k = 0; k < 6; ++k) queries[24 + k] = 10 * key[k];  // the first head of the second
    queries = testing::turned(
        queries, std::vector<Position>{tokens[0].position, tokens[1].position}, turning_layout());
    const Tensor asked = placed(queries);
    QueryView view = memory->queries();
    view.queries = asked.view();
    std::vector<RowSet> sets;
    memory->read(context_, 0, view, sets);
    const auto found = sets[0].ordinals;
    for (int32_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(std::binary_search(found.begin(), found.end(), 4 * needle + i))
          << "picture " << needle;
    }
  }
}

}  // namespace
}  // namespace kinora
