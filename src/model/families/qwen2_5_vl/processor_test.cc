#include "model/families/qwen2_5_vl/processor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "model/weights/safetensors.h"
#include "support/procedural_pixels.h"

namespace kinora {
namespace {

using nlohmann::json;
using testing::procedural_clip;

const std::string fixtures = KINORA_FIXTURES;

json read_json(const std::string& name) { return json::parse(real_files().read(fixtures + name)); }

QwenProcessor processor_of(const std::string& model) {
  return QwenProcessor::read(real_files(), fixtures + "/models/" + model);
}

Size size_of(const json& pair) { return {pair[1].get<int64_t>(), pair[0].get<int64_t>()}; }

Tensor resized(const Context& context, const Tensor& frames, Size size) {
  Tensor out(DType::u8, {frames.size(0), size.height, size.width, 3});
  for (int64_t i = 0; i < frames.size(0); ++i)
    resize(context, frames.view()[i], ResizeFilter::bicubic, out.view()[i]);
  return out;
}

struct Difference {
  double sum = 0;
  double largest = 0;
  int64_t count = 0;
  void add(double value) {
    sum += std::abs(value);
    largest = std::max(largest, std::abs(value));
    ++count;
  }
};

// In units of a byte: the normalised values are scaled back by the channel's deviation.
void expect_close(const Difference& difference) {
  EXPECT_LE(difference.sum / static_cast<double>(difference.count), 0.5);
  EXPECT_LE(difference.largest, 3);
}

constexpr double mean[] = {0.48145466, 0.4578275, 0.40821073};
constexpr double deviation[] = {0.26862954, 0.26130258, 0.27577711};

double byte_of(float value, int64_t channel) {
  return (value * deviation[channel] + mean[channel]) * 255;
}

TEST(QwenProcessor, SmartResizeFollowsBothPublishedRules) {
  const json table = read_json("/processor/smart_resize.json");
  const int64_t factor = table["factor"];
  int compared = 0;
  for (const json& one : table["cases"]) {
    for (const char* rule : {"processor", "utils"}) {
      SCOPED_TRACE(one.dump() + rule);
      const auto ours = [&] {
        return smart_resize(size_of(one["size"]), factor, one["limits"][0], one["limits"][1],
                            std::string(rule) == "utils");
      };
      if (one[rule].is_null()) {
        EXPECT_THROW(ours(), Error);
        continue;
      }
      Size expected = size_of(one[rule]);
      // qwen-vl-utils can shrink a thin side to nothing; a picture keeps one block.
      expected = {std::max(expected.width, factor), std::max(expected.height, factor)};
      EXPECT_EQ(ours(), expected);
      ++compared;
    }
  }
  EXPECT_GE(compared, 900);
}

TEST(QwenProcessor, VideoFramesShareABudget) {
  const QwenProcessor processor = QwenProcessor::parse(
      R"({"min_pixels": 3136, "max_pixels": 12845056})", "preprocessor_config.json");
  const json table = read_json("/processor/qwen_sampling.json");
  ASSERT_GE(table["budget"].size(), 40u);
  for (const json& one : table["budget"]) {
    SCOPED_TRACE(one.dump());
    VisualSource source{Modality::video, size_of(one["size"]), one["frames"], 2.0};
    const VisualPlan plan = processor.plan(source, {});
    EXPECT_EQ(plan.frame_size, size_of(one["resized"]));
    EXPECT_EQ(plan.units, (source.frames + 1) / 2);
    EXPECT_EQ(plan.seconds_per_unit, 1.0);
  }
}

void check_visual(const Context& context, const QwenProcessor& processor, const json& entry,
                  bool video, const SafetensorsFile& file, const std::string& name) {
  const int64_t frames = video ? entry["frames"].get<int64_t>() : 1;
  const VisualSource source{video ? Modality::video : Modality::image,
                            {entry["width"], entry["height"]},
                            frames,
                            video ? entry["fps"].get<double>() : 0.0};
  // The reference hands frames to the HF processor, which knows only the directory's limits.
  const VisualLimits limits{processor.config().min_pixels, processor.config().max_pixels};
  const VisualPlan plan = processor.plan(source, video ? limits : VisualLimits{});
  EXPECT_EQ(plan.frame_size, (Size{entry["resized_width"], entry["resized_height"]}));
  const json& grid = entry["grid_thw"];
  EXPECT_EQ(plan.units, grid[0].get<int64_t>());
  EXPECT_EQ(plan.grid, (Size{grid[2].get<int64_t>() / 2, grid[1].get<int64_t>() / 2}));
  EXPECT_EQ(plan.tokens(),
            grid[0].get<int64_t>() * grid[1].get<int64_t>() * grid[2].get<int64_t>() / 4);
  if (video) {
    // The reference holds it in f32.
    EXPECT_NEAR(plan.seconds_per_unit, entry["second_per_grid_t"].get<double>(), 1e-6);
  }

  const Tensor clip = procedural_clip(entry["seed"], frames, source.size.height, source.size.width);
  const Tensor ours = processor.patches(context, resized(context, clip, plan.frame_size).view());
  const Tensor expected = file.tensor(name);
  ASSERT_EQ(to_string(ours.shape()), to_string(expected.shape()));
  Difference difference;
  for (int64_t i = 0; i < ours.elements(); ++i) {
    const int64_t channel = i % ours.size(1) / (ours.size(1) / 3);
    difference.add(byte_of(ours.data<float>()[i], channel) - expected.data<uint8_t>()[i]);
  }
  expect_close(difference);
}

TEST(QwenProcessor, GivesThePatchesOfEveryCase) {
  const ThreadPool pool(2);
  const Context context(pool);
  const FileSystem& files = real_files();
  int compared = 0;
  for (const std::string model :
       {"qwen2_5_vl_untied_old", "qwen2_5_vl_tied_new", "qwen2_5_vl_demo"}) {
    const QwenProcessor processor = processor_of(model);
    const std::string folder = fixtures + "/cases/" + model;
    for (const std::string& name : files.list(folder)) {
      if (!name.ends_with(".json")) continue;
      SCOPED_TRACE(model + "/" + name);
      const json one = json::parse(files.read(folder + "/" + name));
      const SafetensorsFile file = SafetensorsFile::open(
          files, folder + "/" + name.substr(0, name.size() - 5) + ".safetensors");
      for (const char* kind : {"image", "video"}) {
        const json& entries = one[std::string(kind) + "s"];
        for (size_t k = 0; k < entries.size(); ++k) {
          check_visual(context, processor, entries[k], kind[0] == 'v', file,
                       std::string(kind) + "." + std::to_string(k) + ".patches");
          ++compared;
        }
      }
    }
  }
  EXPECT_GE(compared, 15);
}

TEST(QwenProcessor, GivesThePatchesOfBigPictures) {
  const ThreadPool pool(2);
  const Context context(pool);
  for (const json& one : read_json("/processor/images.json")) {
    if (one["family"] != "qwen2_5_vl") continue;
    SCOPED_TRACE(one["size"].dump());
    const QwenProcessor processor = QwenProcessor::parse("{}", "preprocessor_config.json");
    const VisualLimits limits{one["limits"][0], one["limits"][1]};
    const Size size = size_of(one["size"]);
    const VisualPlan plan = processor.plan({Modality::image, size, 1, 0}, limits);
    const Tensor picture = procedural_clip(one["seed"], 1, size.height, size.width);
    const Tensor ours =
        processor.patches(context, resized(context, picture, plan.frame_size).view());
    const json& expected = one["patches"];
    ASSERT_EQ(ours.size(0), expected["shape"][0].get<int64_t>());
    ASSERT_EQ(ours.size(1), expected["shape"][1].get<int64_t>());
    Difference difference;
    for (const auto& [row, values] : expected["rows"].items()) {
      for (size_t i = 0; i < values.size(); ++i) {
        const int64_t column = static_cast<int64_t>(i);
        const float value = ours.data<float>()[std::stoll(row) * ours.size(1) + column];
        difference.add(byte_of(value, column / (ours.size(1) / 3)) - values[i].get<double>());
      }
    }
    expect_close(difference);
    // Means of 64 parts of all bytes: the first `rest` parts have one more.
    const int64_t total = ours.elements(), rest = total % 64;
    for (int64_t part = 0, begin = 0; part < 64; ++part) {
      const int64_t end = begin + total / 64 + (part < rest ? 1 : 0);
      double sum = 0;
      for (int64_t i = begin; i < end; ++i)
        sum += byte_of(ours.data<float>()[i], i % ours.size(1) / (ours.size(1) / 3));
      EXPECT_NEAR(sum / static_cast<double>(end - begin), expected["means"][part].get<double>(),
                  0.05);
      begin = end;
    }
  }
}

TEST(QwenProcessor, ReadsBothGenerationsOfFiles) {
  const QwenProcessor::Config older = processor_of("qwen2_5_vl_tied_new").config();
  const QwenProcessor::Config newer = processor_of("qwen2_5_vl_tied_v5").config();
  EXPECT_EQ(older.min_pixels, newer.min_pixels);
  EXPECT_EQ(older.max_pixels, newer.max_pixels);
  EXPECT_EQ(newer.video_max_pixels, older.max_pixels);
  EXPECT_EQ(older.video_max_pixels, 0);
  EXPECT_THROW(QwenProcessor::read(real_files(), fixtures + "/tokenizers/qwen"), Error);
  // A video processor of its own sets the limits of frames and leaves those of images.
  const QwenProcessor own = QwenProcessor::parse(
      R"({"min_pixels": 3136, "max_pixels": 1000000})", "preprocessor_config.json",
      R"({"size": {"shortest_edge": 3136, "longest_edge": 50176}})");
  const VisualPlan video = own.plan({Modality::video, {640, 640}, 4, 2.0}, {});
  EXPECT_EQ(video.frame_size, (Size{224, 224}));
  EXPECT_EQ(own.plan({Modality::image, {640, 640}, 1, 0}, {}).frame_size, (Size{644, 644}));
}

TEST(QwenProcessor, CallerLimitsCount) {
  const QwenProcessor processor = processor_of("qwen2_5_vl_demo");
  const VisualSource video{Modality::video, {1920, 1080}, 8, 2.0};
  const VisualPlan small = processor.plan(video, {0, 50 * 28 * 28});
  EXPECT_LE(small.frame_size.width * small.frame_size.height, 50 * 28 * 28);
  const VisualPlan image = processor.plan({Modality::image, {20000, 20000}, 1, 0}, {});
  EXPECT_LE(image.frame_size.width * image.frame_size.height, 96 * 28 * 28);
  EXPECT_EQ(processor.plan({Modality::image, {1, 1}, 1, 0}, {}).frame_size, (Size{56, 56}));
  EXPECT_THROW(processor.plan(video, {5000, 4000}), Error);
  EXPECT_THROW(processor.plan({Modality::video, {64, 64}, 8, 0}, {}), Error);
  EXPECT_THROW(processor.plan({Modality::video, {64, 64}, 0, 2}, {}), Error);
  EXPECT_THROW(processor.plan({Modality::image, {0, 5}, 1, 0}, {}), Error);
}

TEST(QwenProcessor, RefusesDamagedConfigs) {
  for (const char* text :
       {"", "[]", "{", R"({"patch_size": 0})", R"({"patch_size": -14})", R"({"min_pixels": 1.5})",
        R"({"max_pixels": "many"})", R"({"min_pixels": 100, "max_pixels": 50})",
        R"({"image_mean": [1, 2]})", R"({"image_std": [0, 1, 1]})", R"({"image_mean": "x"})",
        R"({"patch_size": 100000})"}) {
    EXPECT_THROW(QwenProcessor::parse(text, "preprocessor_config.json"), Error) << text;
  }
  const QwenProcessor newer = QwenProcessor::parse(
      R"({"size": {"shortest_edge": 3136, "longest_edge": 4000000}})", "preprocessor_config.json");
  EXPECT_EQ(newer.config().max_pixels, 4000000);
}

}  // namespace
}  // namespace kinora
