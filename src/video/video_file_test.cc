#include <gtest/gtest.h>
#include <kinora/video.h>

#include "video/test_media.h"

namespace kinora {
namespace {

TEST(VideoFileTest, DeliversBlocks) {
  VideoFile video(small_clip());
  const VideoSummary summary = video.summary();
  EXPECT_EQ(summary.frames, 120);
  EXPECT_EQ(summary.width, 128);
  EXPECT_EQ(summary.codec, "h264");
  FrameRequest request;
  request.frames = FrameChoice::rate(4);
  request.width = 32;
  request.height = 24;
  request.frames_per_block = 8;
  std::vector<int64_t> indices;
  const ReadSummary read = video.read(request, [&](const FrameBlock& block) {
    EXPECT_EQ(block.width, 32);
    EXPECT_EQ(block.height, 24);
    for (int64_t i = 0; i < block.frames; ++i) {
      EXPECT_NEAR(block.times[i], static_cast<double>(block.indices[i]) / 24, 1e-9);
      indices.push_back(block.indices[i]);
    }
    return true;
  });
  ASSERT_EQ(indices.size(), 20u);
  for (size_t i = 0; i < indices.size(); ++i) EXPECT_EQ(indices[i], static_cast<int64_t>(6 * i));
  EXPECT_EQ(read.delivered, 20);
  EXPECT_TRUE(read.damaged.empty());

  int blocks = 0;
  video.read(request, [&](const FrameBlock&) { return ++blocks < 2; });
  EXPECT_EQ(blocks, 2);
}

// Without a model the default is two frames per second.
TEST(VideoFileTest, ChoosesFramesWithoutAModel) {
  VideoFile video(small_clip());
  const auto read = [&](const FrameRequest& request) {
    std::vector<int64_t> indices;
    video.read(request, [&](const FrameBlock& block) {
      indices.insert(indices.end(), block.indices, block.indices + block.frames);
      return true;
    });
    return indices;
  };
  EXPECT_EQ(read({}), (std::vector<int64_t>{0, 12, 24, 36, 48, 60, 72, 84, 96, 108}));
  EXPECT_EQ(read({.frames = {.start = 4}}), (std::vector<int64_t>{96, 108}));
  EXPECT_EQ(read({.frames = FrameChoice::at_indices({7, 3})}), (std::vector<int64_t>{3, 7}));
  EXPECT_EQ(read({.frames = FrameChoice::evenly(3)}), (std::vector<int64_t>{0, 59, 119}));
  EXPECT_THROW(read({.frames = FrameChoice::at_indices({})}), Error);
}

TEST(VideoFileTest, RefusesUnknownFilters) {
  VideoFile video(small_clip());
  FrameRequest request;
  request.filter = "lanczos";
  EXPECT_THROW(video.read(request, [](const FrameBlock&) { return true; }), Error);
}

}  // namespace
}  // namespace kinora
