#include "memory/partial/frame_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/threads.h"
#include "memory/partial/partial_test_support.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::any_video;
using testing::text_tokens;
using testing::video_tokens;

class FrameTables : public ::testing::Test {
 protected:
  void add(const std::vector<TokenInfo>& tokens) {
    const int64_t first = memory_.token_count();
    memory_.begin(context_, {tokens});
    memory_.append(0);
    frames_.update(memory_, first, memory_.token_count());
  }
  std::vector<Position> near(const std::vector<int32_t>& tokens, int32_t next) const {
    return near_positions(memory_, frames_, tokens, next);
  }

  const ThreadPool threads_{1};
  const Context context_{threads_};
  FlatMemory memory_{RowLayout{1, 1, 4, DType::f32}};
  FrameTable frames_;
};

TEST_F(FrameTables, FindFramesAcrossGroupsAndForgetThem) {
  add(text_tokens(0, 3));
  // Three pictures of 2 × 2 tokens, the second of which comes in two groups.
  const std::vector<TokenInfo> video = video_tokens(3, 3, 2, 2, 5);
  add({video.begin(), video.begin() + 6});
  add({video.begin() + 6, video.end()});
  add(text_tokens(20, 2));
  ASSERT_EQ(frames_.frames().size(), 3u);
  EXPECT_EQ(frames_.frames()[1].begin, 7);
  EXPECT_EQ(frames_.frames()[1].end, 11);
  EXPECT_EQ(frames_.frames()[2].run, 3);
  EXPECT_EQ(frames_.frames()[2].before, 8);
  EXPECT_EQ(frames_.visual_tokens(), 12);
  EXPECT_EQ(frames_.text().size(), 5u);
  EXPECT_EQ(frames_.run_of(9), 3);
  EXPECT_EQ(frames_.run_of(2), -1);
  EXPECT_EQ(frames_.run_of(15), -1);
  EXPECT_EQ(frames_.frames_before(11).size(), 2u);
  EXPECT_EQ(frames_.frames_before(10).size(), 1u);
  frames_.update(memory_, 9, 9);
  ASSERT_EQ(frames_.frames().size(), 2u);
  EXPECT_EQ(frames_.frames()[1].end, 9);
  EXPECT_EQ(frames_.visual_tokens(), 6);
  EXPECT_EQ(frames_.text().size(), 3u);
}

// Text at 0 1 2, pictures of 2 × 2 tokens at times 3, 8, 13, 18, the question behind them.
TEST_F(FrameTables, CloseTheGapsThatAreLeft) {
  add(text_tokens(0, 3));
  add(video_tokens(3, 4, 2, 2, 5));
  add(text_tokens(19, 2));
  // The second and the fourth picture, and one token of the text.
  const std::vector<Position> placed = near({1, 7, 8, 9, 10, 15, 16, 17, 18}, 19);
  EXPECT_EQ(placed[8], (Position{18, 4 + 10, 4 + 10}));  // stays in time
  EXPECT_EQ(placed[4], (Position{13, 4 + 10, 4 + 10}));  // one step before it
  EXPECT_EQ(placed[1], (Position{13, 3 + 10, 3 + 10}));
  // The run now begins at 13, and the text ends right before it.
  EXPECT_EQ(placed[0], (Position{12, 12, 12}));
  // Nothing before the pictures: they stand the same.
  EXPECT_EQ(near({7, 8, 9, 10, 15, 16, 17, 18}, 19)[0], placed[1]);
  EXPECT_TRUE(near({}, 19).empty());
}

// While frames are read in, the pictures of their own video keep their rows and columns.
TEST_F(FrameTables, PlaceFramesBeforeFramesOfTheirVideo) {
  add(text_tokens(0, 2));
  add(video_tokens(2, 3, 1, 2, 4));
  add(video_tokens(2, 1, 1, 2, 4, 3));  // the fourth picture, at 14
  const std::vector<Position> placed = near({0, 2, 3}, 8);
  EXPECT_EQ(placed[1], (Position{10, 2, 2}));
  EXPECT_EQ(placed[2], (Position{10, 2, 3}));
  EXPECT_EQ(placed[0], (Position{9, 9, 9}));
}

TEST_F(FrameTables, WhatLeavesNothingOutMovesNothing) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 20; ++round) add(any_video(random, memory_));
  add(text_tokens(1'000'000, 1));
  const auto last = static_cast<int32_t>(memory_.token_count() - 1);
  std::vector<int32_t> all, some;
  for (int32_t i = 0; i < last; ++i) {
    all.push_back(i);
    if (random.below(3) == 0) some.push_back(i);
  }
  const std::vector<Position> placed = near(all, last);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(placed[i], memory_.token(all[i]).position);
  // However much is left out, order stays and nothing moves back.
  const std::vector<Position> nearer = near(some, last);
  for (size_t i = 0; i < some.size(); ++i) {
    EXPECT_GE(nearer[i][0], memory_.token(some[i]).position[0]);
    EXPECT_LT(nearer[i][0], 1'000'000);
    EXPECT_GE(nearer[i][0], nearer[i > 0 ? i - 1 : 0][0]);
  }
}

}  // namespace
}  // namespace kinora
