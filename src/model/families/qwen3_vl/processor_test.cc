#include "model/families/qwen3_vl/processor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "model/families/qwen3_vl/frames.h"

namespace kinora {
namespace {

using nlohmann::json;

json table() {
  return json::parse(real_files().read(std::string(KINORA_FIXTURES) + "/processor/qwen3_vl.json"));
}

constexpr const char* image_settings =
    R"({"size": {"shortest_edge": 65536, "longest_edge": 16777216},
  "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
  "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]})";

Qwen3Processor published(const std::string& more = "") {
  return Qwen3Processor::parse(
      image_settings, "here",
      R"({"size": {"shortest_edge": 4096, "longest_edge": 25165824})" + more + "}");
}

VisualSource video(int64_t frames, Size size) { return {Modality::video, size, frames, 2.0}; }

TEST(Qwen3Processor, TheBudgetOfAVideoIsThePublishedOne) {
  int compared = 0;
  const json published_table = table();
  for (const json& one : published_table["resized"]) {
    SCOPED_TRACE(one.dump());
    const Size size{one["size"][1], one["size"][0]};
    const auto ours = [&] {
      return video_resize(size, one["frames"], 2, 32, one["limits"][0], one["limits"][1]);
    };
    if (one["result"].is_null()) {
      // 4.57 refuses a side below 32 pixels as well, which later ones enlarge.
      if (std::min(size.width, size.height) >= 32) {
        EXPECT_THROW(ours(), Error);
      }
      continue;
    }
    EXPECT_EQ(ours(), (Size{one["result"][1], one["result"][0]}));
    ++compared;
  }
  EXPECT_GE(compared, 100);
}

TEST(Qwen3Processor, SmallVideosAreEnlargedFirst) {
  EXPECT_EQ(video_resize({20, 40}, 8, 2, 32, 4096, 25165824), (Size{32, 64}));
  EXPECT_THROW(video_resize({1, 300}, 8, 2, 32, 4096, 25165824), Error);
  EXPECT_THROW(video_resize({0, 300}, 8, 2, 32, 4096, 25165824), Error);
}

TEST(Qwen3Processor, FramesAreThePublishedOnes) {
  const json published_table = table();
  ASSERT_GE(published_table["sampled"].size(), 100u);
  for (const json& one : published_table["sampled"]) {
    SCOPED_TRACE(one.dump());
    Qwen3FrameRule rule;
    rule.fps = one["wish"].value("fps", rule.fps);
    rule.count = one["wish"].value("num_frames", int64_t{0});
    const double fps = one["fps"];
    std::vector<int64_t> frames = qwen3_frames(rule, one["total"], fps);
    ASSERT_EQ(frames.size(), one["count"].get<size_t>());
    EXPECT_EQ(std::accumulate(frames.begin(), frames.end(), int64_t{0}), one["sum"].get<int64_t>());
    std::vector<int64_t> ends = frames;
    if (ends.size() > 24) ends.erase(ends.begin() + 12, ends.end() - 12);
    EXPECT_EQ(ends, one["indices"].get<std::vector<int64_t>>());
    if (frames.size() % 2 != 0) frames.push_back(frames.back());
    for (size_t i = 0; i < one["times"].size(); ++i) {
      const double time = (static_cast<double>(frames[2 * i]) / fps +
                           static_cast<double>(frames[2 * i + 1]) / fps) /
                          2;
      EXPECT_EQ(fmt::format("<{:.1f} seconds>", time), one["times"][i].get<std::string>());
    }
  }
  EXPECT_TRUE(qwen3_frames({}, 0, 25).empty());
  EXPECT_EQ(qwen3_frames({}, 48, 0).size(), 4u);  // an unknown rate counts as 24
}

TEST(Qwen3Processor, PlansAVideo) {
  const VisualPlan plan = published().plan(video(5, {640, 360}), {});
  EXPECT_EQ(plan.frame_size, (Size{640, 352}));
  EXPECT_EQ(plan.units, 3);
  EXPECT_EQ(plan.frames_per_unit, 2);
  EXPECT_EQ(plan.tokens_per_unit, 20 * 11);
  EXPECT_TRUE(plan.units_apart);
  // The more frames, the smaller each: at most 12,288 tokens in all.
  const VisualPlan longer = published().plan(video(768, {640, 360}), {});
  EXPECT_LE(longer.tokens(), 12288);
  EXPECT_GT(longer.tokens(), 8000);
  EXPECT_EQ(published().plan(video(1, {640, 360}), {}).units, 1);
}

TEST(Qwen3Processor, PicturesHaveLimitsOfTheirOwn) {
  const VisualPlan plan = published().plan({Modality::image, {640, 360}, 1, 0}, {});
  EXPECT_EQ(plan.frame_size, (Size{640, 352}));
  EXPECT_FALSE(plan.units_apart);
  EXPECT_EQ(published().plan({Modality::image, {64, 64}, 1, 0}, {}).frame_size, (Size{256, 256}));
}

TEST(Qwen3Processor, KeepsTheCallersLimits) {
  const VisualLimits most{0, 32 * 32 * 6};
  EXPECT_LE(published().plan(video(8, {640, 360}), most).tokens_per_unit, 6);
  const VisualLimits least{1 << 20, 0};
  EXPECT_GE(published().plan(video(8, {640, 360}), least).tokens_per_unit, 1024);
  EXPECT_THROW(published().plan(video(8, {640, 360}), {2000, 1000}), Error);
  EXPECT_THROW(published().plan(video(0, {640, 360}), {}), Error);
}

TEST(Qwen3Processor, CapsEveryFrameWhereTheFileSaysSo) {
  const Qwen3Processor capped = published(R"(, "cap_pixels_per_frame": true)");
  EXPECT_LE(capped.plan(video(4, {3840, 2160}), {}).tokens_per_unit, 768);
  EXPECT_GT(published().plan(video(4, {3840, 2160}), {}).tokens_per_unit, 768);
  // Without a file of its own a video has the published budget.
  EXPECT_LE(Qwen3Processor::parse(image_settings, "here").plan(video(768, {640, 360}), {}).tokens(),
            12288);
}

}  // namespace
}  // namespace kinora
