#include "model/families/llava_onevision/processor.h"

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

LlavaProcessor processor_of(const std::string& model) {
  return LlavaProcessor::read(real_files(), fixtures + "/models/" + model);
}

// A processor with the published sizes.
LlavaProcessor published(const std::string& more = "") {
  return LlavaProcessor::parse(
      R"({"vision_config": {"image_size": 384, "patch_size": 14})" + more + "}", "{}", "published");
}

Size size_of(const json& pair) { return {pair[1].get<int64_t>(), pair[0].get<int64_t>()}; }

void expect_bytes_close(const Tensor& ours, const Tensor& expected) {
  ASSERT_EQ(to_string(ours.shape()), to_string(expected.shape()));
  double sum = 0, largest = 0;
  for (int64_t i = 0; i < ours.elements(); ++i) {
    const double difference =
        std::abs(static_cast<double>(ours.data<uint8_t>()[i]) - expected.data<uint8_t>()[i]);
    sum += difference;
    largest = std::max(largest, difference);
  }
  EXPECT_LE(sum / static_cast<double>(ours.elements()), 0.5);
  EXPECT_LE(largest, 3);
}

TEST(LlavaProcessor, ChoosesResolutionsAndCountsTokens) {
  const LlavaProcessor processor = published();
  const json table = read_json("/processor/llava_anyres.json");
  ASSERT_EQ(processor.config().pinpoints.size(), table["pinpoints"].size());
  for (const json& one : table["cases"]) {
    SCOPED_TRACE(one.dump());
    const PictureLayout layout = processor.layout(size_of(one["size"]));
    EXPECT_EQ(layout.best, size_of(one["best"]));
    EXPECT_EQ(layout.inside, size_of(one["inside"]));
    EXPECT_EQ(layout.tiles.width * layout.tiles.height + 1, one["tiles"].get<int64_t>());
    EXPECT_EQ(layout.tokens, one["tokens"][0].get<int64_t>());
  }
}

void check_case(const Context& context, const LlavaProcessor& processor, const json& one,
                const SafetensorsFile& file) {
  const json& images = one["images"];
  for (size_t k = 0; k < images.size(); ++k) {
    const json& entry = images[k];
    const Size size{entry["width"], entry["height"]};
    VisualSource source{Modality::image, size, 1, 0};
    source.images_in_prompt = static_cast<int64_t>(images.size());
    const VisualPlan plan = processor.plan(source);
    EXPECT_EQ(plan.frame_size, size);
    EXPECT_EQ(plan.tokens(), entry["tokens"].get<int64_t>());
    const Tensor picture = procedural_clip(entry["seed"], 1, size.height, size.width);
    const Tensor tiles = processor.tiles(context, plan, picture.view()[0]);
    EXPECT_EQ(tiles.size(0), entry["tiles"].get<int64_t>());
    expect_bytes_close(tiles, file.tensor("image." + std::to_string(k) + ".tiles"));
  }
  for (size_t k = 0; k < one["videos"].size(); ++k) {
    const json& entry = one["videos"][k];
    const VisualSource source{
        Modality::video, {entry["width"], entry["height"]}, entry["frames"], entry["fps"]};
    const VisualPlan plan = processor.plan(source);
    EXPECT_EQ(plan.tokens(), entry["tokens"].get<int64_t>());
    EXPECT_EQ(plan.units, source.frames);
    const Tensor clip =
        procedural_clip(entry["seed"], source.frames, source.size.height, source.size.width);
    Tensor frames(DType::u8, {source.frames, plan.frame_size.height, plan.frame_size.width, 3});
    for (int64_t i = 0; i < source.frames; ++i)
      resize(context, clip.view()[i], plan.filter, frames.view()[i]);
    expect_bytes_close(frames, file.tensor("video." + std::to_string(k) + ".frames_resized"));
  }
}

TEST(LlavaProcessor, GivesTheTilesOfEveryCase) {
  const ThreadPool pool(2);
  const Context context(pool);
  const FileSystem& files = real_files();
  int compared = 0;
  for (const std::string model :
       {"llava_onevision_old", "llava_onevision_new", "llava_video_grid"}) {
    const LlavaProcessor processor = processor_of(model);
    const std::string folder = fixtures + "/cases/" + model;
    for (const std::string& name : files.list(folder)) {
      if (!name.ends_with(".json")) continue;
      SCOPED_TRACE(model + "/" + name);
      const json one = json::parse(files.read(folder + "/" + name));
      check_case(context, processor, one,
                 SafetensorsFile::open(
                     files, folder + "/" + name.substr(0, name.size() - 5) + ".safetensors"));
      ++compared;
    }
  }
  EXPECT_GE(compared, 14);
}

TEST(LlavaProcessor, GivesTheTilesOfBigPictures) {
  const ThreadPool pool(2);
  const Context context(pool);
  const LlavaProcessor processor = published();
  int compared = 0;
  for (const json& one : read_json("/processor/images.json")) {
    if (one["family"] != "llava_onevision") continue;
    SCOPED_TRACE(one["size"].dump());
    const Size size = size_of(one["size"]);
    const VisualPlan plan = processor.plan({Modality::image, size, 1, 0});
    const Tensor picture = procedural_clip(one["seed"], 1, size.height, size.width);
    const Tensor tiles = processor.tiles(context, plan, picture.view()[0]);
    const json& expected = one["tiles"];
    ASSERT_EQ(tiles.size(0), expected["shape"][0].get<int64_t>());
    const int64_t row_bytes = tiles.elements() / tiles.size(0);
    for (const auto& [row, values] : expected["rows"].items()) {
      for (size_t i = 0; i < values.size(); ++i) {
        const uint8_t ours =
            tiles.data<uint8_t>()[std::stoll(row) * row_bytes + static_cast<int64_t>(i)];
        EXPECT_NEAR(ours, values[i].get<double>(), 3);
      }
    }
    const int64_t total = tiles.elements(), rest = total % 64;
    for (int64_t part = 0, begin = 0; part < 64; ++part) {
      const int64_t end = begin + total / 64 + (part < rest ? 1 : 0);
      double sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += tiles.data<uint8_t>()[i];
      EXPECT_NEAR(sum / static_cast<double>(end - begin), expected["means"][part].get<double>(),
                  0.1);
      begin = end;
    }
    ++compared;
  }
  EXPECT_EQ(compared, 2);
}

TEST(LlavaProcessor, PatchesAreNormalisedChannelByChannel) {
  const ThreadPool pool(2);
  const Context context(pool);
  const LlavaProcessor processor = processor_of("llava_onevision_old");
  const int64_t side = processor.config().side, patch = processor.config().patch;
  const int64_t grid = processor.config().grid();
  ASSERT_NE(grid * patch, side);  // a rest is left out
  const Tensor tiles = procedural_clip(3, 2, side, side);
  const Tensor rows = processor.patches(context, tiles.view());
  ASSERT_EQ(rows.size(0), 2 * grid * grid);
  ASSERT_EQ(rows.size(1), 3 * patch * patch);
  for (int64_t row = 0; row < rows.size(0); ++row) {
    for (int64_t column = 0; column < rows.size(1); ++column) {
      const int64_t t = row / (grid * grid), y = row / grid % grid * patch + column / patch % patch;
      const int64_t x = row % grid * patch + column % patch, c = column / (patch * patch);
      const double byte = tiles.data<uint8_t>()[((t * side + y) * side + x) * 3 + c];
      ASSERT_NEAR(rows.data<float>()[row * rows.size(1) + column], (byte / 255 - 0.5) / 0.5, 1e-6);
    }
  }
}

TEST(LlavaProcessor, LlavaVideoHas182TokensAFrame) {
  const LlavaProcessor video =
      published(R"(, "mm_newline_position": "grid", "mm_spatial_pool_mode": "average")");
  const VisualPlan plan = video.plan({Modality::video, {1920, 1080}, 10, 1.0});
  EXPECT_EQ(plan.tokens_per_unit, 13 * 14);
  EXPECT_EQ(plan.tokens(), 1820);
  const VisualPlan one = published().plan({Modality::video, {1920, 1080}, 10, 1.0});
  EXPECT_EQ(one.tokens(), 10 * 196 + 1);
}

TEST(LlavaProcessor, HugePicturesAreHeldSmaller) {
  const VisualPlan plan = published().plan({Modality::image, {20000, 20000}, 1, 0});
  EXPECT_LE(plan.frame_size.width * plan.frame_size.height, int64_t{32} << 20);
  EXPECT_EQ(plan.tokens(), published().layout({20000, 20000}).tokens);
  EXPECT_GT(published().plan({Modality::image, {1, 1}, 1, 0}).tokens(), 729);
}

TEST(LlavaProcessor, RefusesDamagedConfigs) {
  const auto parse = [](const char* model, const char* own) {
    return LlavaProcessor::parse(model, own, "directory");
  };
  const char* good = R"({"vision_config": {"image_size": 34, "patch_size": 6}})";
  EXPECT_NO_THROW(parse(good, "{}"));
  EXPECT_THROW(parse("{}", "{}"), Error);
  EXPECT_THROW(parse(good, "nothing"), Error);
  EXPECT_THROW(parse(good, R"({"size": {"height": 35, "width": 34}})"), Error);
  EXPECT_THROW(parse(good, R"({"image_std": [0, 0, 0]})"), Error);
  for (const char* more :
       {R"("image_grid_pinpoints": [[384]])", R"("image_grid_pinpoints": [])",
        R"("image_grid_pinpoints": [[385, 384]])", R"("vision_aspect_ratio": "square")",
        R"("vision_aspect_ratio": "anyres_max_")", R"("vision_aspect_ratio": "anyres_max_-1")",
        R"("mm_newline_position": "nowhere")", R"("mm_spatial_pool_stride": 0)",
        R"("mm_spatial_pool_mode": "average", "mm_spatial_pool_stride": 28)",
        R"("mm_spatial_pool_mode": 3)"}) {
    EXPECT_THROW(published(std::string(", ") + more), Error) << more;
  }
  EXPECT_THROW(published().plan({Modality::image, {0, 0}, 1, 0}), Error);
}

}  // namespace
}  // namespace kinora
