#include "model/families/llava_onevision/frames.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/reference_case.h"

namespace kinora {
namespace {

using nlohmann::json;

TEST(LlavaFrames, FollowBothRules) {
  for (const json& one :
       json::parse(real_files().read(KINORA_FIXTURES "/processor/llava_sampling.json"))) {
    SCOPED_TRACE(one.dump());
    EXPECT_EQ(llava_uniform_frames(one["total"], one["max_frames"]),
              one["uniform"].get<std::vector<int64_t>>());
    EXPECT_EQ(llava_video_frames(one["total"], one["fps"], one["max_frames"]),
              one["video"].get<std::vector<int64_t>>());
  }
}

TEST(LlavaFrames, FollowTheWish) {
  const ThreadPool pool(2);
  const Context context(pool);
  const auto uniform =
      load_model(context, real_files(), testing::model_directory("llava_onevision_new"));
  EXPECT_EQ(uniform->choose_frames(1000, 25, {}), llava_uniform_frames(1000, 32));
  EXPECT_EQ(uniform->choose_frames(1000, 25, {{}, 8}), llava_uniform_frames(1000, 8));
  const auto by_time =
      load_model(context, real_files(), testing::model_directory("llava_video_grid"));
  EXPECT_EQ(by_time->choose_frames(1000, 25, {}), llava_video_frames(1000, 25, 64));
  EXPECT_EQ(by_time->choose_frames(1000, 25, {{}, 8}), llava_uniform_frames(1000, 8));
  // A rate means the frame on screen at even times, which only the video can tell.
  EXPECT_TRUE(uniform->choose_frames(1000, 25, {2.0, {}}).empty());
  EXPECT_TRUE(by_time->choose_frames(1000, 25, {2.0, {}}).empty());
}

}  // namespace
}  // namespace kinora
