#include "eval/visual_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/threads.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

Tensor random_tokens(Random& random, int64_t rows, int64_t columns) {
  Tensor tokens(DType::f32, {rows, columns});
  for (int64_t i = 0; i < rows * columns; ++i) {
    tokens.view().data<float>()[i] = static_cast<float>(random.below(1 << 20)) - 0.25f;
  }
  return tokens;
}

bool same(ConstTensorView a, ConstTensorView b) {
  return a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), size_t(a.bytes())) == 0;
}

TEST(TokenFolder, GivesBackWhatWasStored) {
  KINORA_FRESH_RANDOM(random);
  const testing::TempDir directory;
  TokenFolder folder(directory.file("deep/cache"), 1 << 20);
  const Tensor tokens = random_tokens(random, 5, 63);
  EXPECT_FALSE(folder.find(ContentKey("a")));
  folder.store(ContentKey("a"), tokens);
  EXPECT_FALSE(folder.find(ContentKey("b")));
  TokenFolder later(directory.file("deep/cache"), 1 << 20);
  const auto found = later.find(ContentKey("a"));
  ASSERT_TRUE(found);
  EXPECT_TRUE(same(*found, tokens));
  EXPECT_EQ(later.bytes(), folder.bytes());
}

TEST(TokenFolder, DamagedFilesAreMisses) {
  KINORA_FRESH_RANDOM(random);
  const testing::TempDir directory;
  TokenFolder folder(directory.path(), 1 << 20);
  folder.store(ContentKey("a"), random_tokens(random, 3, 65));
  const std::string path = directory.file(ContentKey("a").text() + ".tokens");
  const std::string good = real_files().read(path);
  for (int trial = 0; trial < 200; ++trial) {
    std::string bad = good;
    if (trial % 2 == 0) bad.resize(static_cast<size_t>(random.below(int64_t(good.size()))));
    if (trial % 2 == 1) {
      const auto at = static_cast<size_t>(random.below(static_cast<int64_t>(bad.size())));
      bad[at] = static_cast<char>(bad[at] ^ (1 << random.below(8)));
    }
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bad;
    EXPECT_FALSE(folder.find(ContentKey("a"))) << trial;
  }
  std::ofstream(path, std::ios::binary | std::ios::trunc) << good;
  EXPECT_TRUE(folder.find(ContentKey("a")));
}

TEST(TokenFolder, KeepsItsLimitAndWhatWasUsedLast) {
  KINORA_FRESH_RANDOM(random);
  const testing::TempDir directory;
  const Tensor tokens = random_tokens(random, 8, 128);
  const int64_t limit = 10 * (tokens.view().bytes() + 64);
  TokenFolder folder(directory.path(), limit);
  const auto touch = [&](const char* name, int seconds) {
    std::filesystem::last_write_time(
        directory.file(ContentKey(name).text() + ".tokens"),
        std::filesystem::file_time_type::clock::now() - std::chrono::seconds(seconds));
  };
  folder.store(ContentKey("old"), tokens);
  folder.store(ContentKey("used"), tokens);
  touch("old", 1000);
  touch("used", 2000);
  EXPECT_TRUE(folder.find(ContentKey("used")));
  for (int i = 0; i < 30; ++i) {
    folder.store(ContentKey(std::to_string(i)), tokens);
    EXPECT_LE(folder.bytes(), limit);
    if (i < 8) touch(std::to_string(i).c_str(), 500 - i);
    if (i == 8) {
      EXPECT_TRUE(folder.find(ContentKey("used")));
      EXPECT_FALSE(folder.find(ContentKey("old")));
    }
  }
  int64_t on_disk = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    on_disk += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_EQ(on_disk, folder.bytes());
  EXPECT_LE(on_disk, limit);
  EXPECT_NO_THROW(folder.store(ContentKey("huge"), random_tokens(random, 200, 128)));
  EXPECT_FALSE(folder.find(ContentKey("huge")));
}

TEST(TokenFolder, AFolderThatCannotBeIsAnError) {
  const testing::TempDir directory;
  std::ofstream(directory.file("file")) << "x";
  EXPECT_THROW(TokenFolder(directory.file("file/cache"), 1 << 20), Error);
}

class VisualCacheOf : public ::testing::TestWithParam<const char*> {};

// The second family's rows are wider than the decoder's: they have deep rows beside them.
INSTANTIATE_TEST_SUITE_P(Families, VisualCacheOf,
                         ::testing::Values("qwen2_5_vl_tied_new", "qwen3_vl_tied"));

TEST_P(VisualCacheOf, SecondEncodingIsTheSameAndComesFromDisk) {
  KINORA_FRESH_RANDOM(random);
  const testing::TempDir directory;
  const std::string path = std::string(KINORA_FIXTURES) + "/models/" + GetParam();
  ThreadPool threads(2);
  const Context context(threads, Device::cpu());
  const auto plain = load_model(context, real_files(), path);
  const auto folder = std::make_shared<TokenFolder>(directory.path(), 1 << 24);
  const auto cached = with_visual_cache(load_model(context, real_files(), path), folder, "one");
  const VisualPlan plan = plain->plan_visual({Modality::video, {56, 84}, 4, 2.0}, {});
  FrameGroup frames;
  frames.pixels = Tensor(DType::u8, {4, plan.frame_size.height, plan.frame_size.width, 3});
  for (int64_t i = 0; i < frames.pixels.view().elements(); ++i) {
    frames.pixels.view().data<uint8_t>()[i] = static_cast<uint8_t>(random.below(256));
  }
  const Tensor wanted = plain->encode(context, plan, frames, true);
  EXPECT_EQ(wanted.size(1), (1 + plain->info().deep_levels) * plain->decoder().hidden_size());
  EXPECT_TRUE(same(cached->encode(context, plan, frames, true), wanted));
  const int64_t stored = folder->bytes();
  EXPECT_GT(stored, wanted.view().bytes());
  EXPECT_TRUE(same(cached->encode(context, plan, frames, true), wanted));
  EXPECT_EQ(folder->bytes(), stored);
  // One other pixel, or other weights, are another entry.
  frames.pixels.view().data<uint8_t>()[77] ^= 1;
  const Tensor changed = cached->encode(context, plan, frames, true);
  EXPECT_EQ(folder->bytes(), 2 * stored);
  EXPECT_FALSE(same(changed, wanted));
  const auto other = with_visual_cache(load_model(context, real_files(), path), folder, "two");
  other->encode(context, plan, frames, true);
  EXPECT_EQ(folder->bytes(), 3 * stored);
}

TEST(VisualCache, WeightsAreToldApart) {
  const testing::TempDir directory;
  std::ofstream(directory.file("model.safetensors")) << "12345";
  const std::string before = weights_identity(directory.path());
  EXPECT_EQ(weights_identity(directory.path()), before);
  std::filesystem::last_write_time(
      directory.file("model.safetensors"),
      std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_NE(weights_identity(directory.path()), before);
}

TEST(VisualCache, LinksToTheSameWeightsBesideAnotherTableAreTheSame) {
  const testing::TempDir directory, links;
  std::ofstream(directory.file("model.safetensors")) << "12345";
  std::ofstream(directory.file("config.json")) << "{}";
  std::ofstream(links.file("kinora-attention.json")) << "another table";
  for (const char* name : {"model.safetensors", "config.json"}) {
    std::filesystem::create_symlink(directory.file(name), links.file(name));
  }
  EXPECT_EQ(weights_identity(links.path()), weights_identity(directory.path()));
}

}  // namespace
}  // namespace kinora
