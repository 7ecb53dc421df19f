// Whether the bench's heads attend as they are said to: figure 2 of the MMInference paper at a
// small size, and each kind's lines, looked at in double precision.
#include "bench/video_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "attention/search/sampled_attention.h"
#include "base/error.h"
#include "base/threads.h"

namespace kinora::cli {
namespace {

constexpr int64_t frame = 64;
constexpr int64_t text = 8;
constexpr AttentionShape small{.heads = 16, .kv_heads = 2, .head_size = 128};

class VideoKeysTest : public ::testing::Test {
 protected:
  VideoKeyOptions options_{.frame_tokens = frame, .text_tokens = text, .softest = 1, .seed = 7};
  ThreadPool pool_{2};
  Context context_{pool_};
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// The attention of one query of a head over all rows.
std::vector<double> attention_of(const VideoKeys& input, int64_t query, int64_t head) {
  const ConstTensorView queries = input.queries().queries, keys = input.rows().keys;
  const int64_t d = queries.size(2), kv = head / (queries.size(1) / keys.size(1));
  const float* q = queries.row<float>(query) + head * d;
  std::vector<double> weights;
  double max = -1e30, sum = 0;
  for (int64_t row = 0; row <= query; ++row) {
    const bf16* k = keys.row<bf16>(row) + kv * d;
    double score = 0;
    for (int64_t c = 0; c < d; ++c) score += double{q[c]} * double{k[c].to_float()};
    weights.push_back(score * double{input.scale()});
    max = std::max(max, weights.back());
  }
  for (double& weight : weights) sum += weight = std::exp(weight - max);
  for (double& weight : weights) weight /= sum;
  return weights;
}

// The share of a query's attention on rows that `is` names.
double share_of(const std::vector<double>& attention, const std::function<bool(int64_t)>& is) {
  double share = 0;
  for (size_t row = 0; row < attention.size(); ++row) {
    if (is(static_cast<int64_t>(row))) share += attention[row];
  }
  return share;
}

TEST_F(VideoKeysTest, HeadsNeedAsFewWeightsAsThePaperSays) {
  // Each kind has heads far below and far above the mean; without one of them a quarter is missing.
  const AttentionShape shape{.heads = 28, .kv_heads = 4, .head_size = 128};
  for (const uint64_t seed : {1, 2}) {
    const VideoKeys input(context_, shape, 8192, {.seed = seed});
    const SampledAttention sampled = sample_attention(context_, input.queries(), input.rows(),
                                                      input.scale(), spread_places(8192, 64), 0.95);
    EXPECT_NEAR(mean(sampled.needed), 0.078, 0.012);
    EXPECT_NEAR(static_cast<double>(std::ranges::count_if(
                    sampled.needed, [](double share) { return share < 0.02; })) /
                    28,
                0.39, 0.08);
    for (size_t kind = 0; kind < video_head_kinds; ++kind) {
      std::vector<double> own;
      for (size_t head = kind; head < 28; head += video_head_kinds) {
        own.push_back(sampled.needed[head]);
      }
      EXPECT_LT(own.front(), 0.01) << "kind " << kind;
      EXPECT_GT(own.back(), 0.05) << "kind " << kind;
    }
  }
}

TEST_F(VideoKeysTest, SoftHeadsCanBeLeftOut) {
  options_ = {.softest = 0.4};
  const VideoKeys input(context_, small, 8192, options_);
  const SampledAttention sampled = sample_attention(context_, input.queries(), input.rows(),
                                                    input.scale(), spread_places(8192, 64), 0.95);
  // At their own length none passes 0.02.
  EXPECT_LT(std::ranges::max(sampled.needed), 0.03);
}

TEST_F(VideoKeysTest, EveryKindHasItsLines) {
  const int64_t tokens = 4000, query = tokens - 3;
  const VideoKeys input(context_, small, tokens, options_);
  const auto heads = video_heads(small, options_);
  for (int64_t head = 0; head < small.heads; ++head) {
    SCOPED_TRACE(head);
    const auto attention = attention_of(input, query, head);
    // Nothing that the window explains.
    const auto far = [&](const std::function<bool(int64_t)>& is) {
      return share_of(attention,
                      [&](int64_t row) { return row >= 4 && query - row > 2 * frame && is(row); });
    };
    const double all_far = far([](int64_t) { return true; });
    EXPECT_GT(share_of(attention, [](int64_t row) { return row < 4; }), 0.001) << "sinks";
    switch (heads[static_cast<size_t>(head)].kind) {
      case VideoHeadKind::grid: {
        double strongest = 0;
        const int64_t stride = heads[static_cast<size_t>(head)].grid == 0   ? frame
                               : heads[static_cast<size_t>(head)].grid == 1 ? frame / 16
                                                                            : frame / 32;
        for (int64_t phase = 0; phase < stride; ++phase) {
          strongest = std::max(strongest, far([&](int64_t row) { return row % stride == phase; }));
        }
        EXPECT_GT(strongest, 0.9 * all_far);
        EXPECT_GT(strongest, 0.05);
        break;
      }
      case VideoHeadKind::slash: {
        // A quarter of all distances.
        const int64_t period = frame / heads[static_cast<size_t>(head)].slashes;
        EXPECT_GT(
            far([&](int64_t row) { return (query - row + period / 8) % period <= period / 4; }),
            0.7 * all_far);
        break;
      }
      case VideoHeadKind::vertical: {
        std::vector<double> rows(attention.begin() + 4, attention.end() - 2 * frame);
        std::sort(rows.begin(), rows.end(), std::greater<>());
        // Three or four landmarks on average, of which some may be near.
        EXPECT_GT(rows[0], 20 * rows[rows.size() / 2]);
        break;
      }
      case VideoHeadKind::boundary:
        EXPECT_LT(share_of(attention, [&](int64_t row) { return row >= 4 && row % frame < text; }),
                  0.02)
            << "text that a video token looks at";
        break;
    }
  }
}

TEST_F(VideoKeysTest, SeedsDecide) {
  const auto bytes = [&](uint64_t seed, int64_t tokens) {
    options_.seed = seed;
    const VideoKeys input(context_, small, tokens, options_);
    const ConstTensorView keys = input.rows().keys;
    return std::vector<std::byte>(keys.raw(), keys.raw() + keys.bytes());
  };
  EXPECT_EQ(bytes(3, 1000), bytes(3, 1000));
  EXPECT_NE(bytes(3, 1000), bytes(4, 1000));
  // A longer input begins with the shorter one.
  const auto longer = bytes(3, 1129);
  const auto shorter = bytes(3, 63);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), longer.begin()));
}

TEST_F(VideoKeysTest, AnySizeWorks) {
  for (const int64_t tokens : {1, 2, 63, 65, 127, 129}) {
    for (const int64_t frame_tokens : {1, 7, 196, 300}) {
      const VideoKeyOptions odd{.frame_tokens = frame_tokens, .text_tokens = 0};
      const VideoKeys input(context_, {.heads = 6, .kv_heads = 3, .head_size = 32}, tokens, odd);
      ASSERT_EQ(input.queries().count(), tokens);
      for (const double share : attention_of(input, tokens - 1, 5)) ASSERT_FALSE(std::isnan(share));
    }
  }
  EXPECT_THROW(VideoKeys(context_, {.head_size = 16}, 8, {}), Error);
  EXPECT_THROW(VideoKeys(context_, {.head_size = 33}, 8, {}), Error);
  EXPECT_THROW(VideoKeys(context_, small, 8, {.frame_tokens = 16, .text_tokens = 16}), Error);
}

}  // namespace
}  // namespace kinora::cli
