#include "video/index/index_cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>

#include "base/files/content_key.h"
#include "video/test_media.h"
#include "video/video.h"

namespace kinora {
namespace {

namespace fs = std::filesystem;

VideoIndex small_index(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<PacketFacts> facts;
  const int order[] = {0, 3, 1, 2, 6, 4, 5};
  for (int i = 0; i < 7; ++i) {
    PacketFacts fact;
    fact.pts = 100 * order[i];
    fact.dts = 100 * i - 200;
    fact.duration = 100;
    fact.position = 1000 * i + static_cast<int64_t>(random() % 500);
    fact.size = static_cast<int32_t>(random() % 1000);
    fact.traits.start = i == 0 || i == 4;
    fact.traits.disposable = i == 2 || i == 6;
    facts.push_back(fact);
  }
  return build_index(facts, {1, 2400}, 24, false);
}

void expect_same(const VideoIndex& a, const VideoIndex& b) {
  ASSERT_EQ(a.packets.size(), b.packets.size());
  for (size_t i = 0; i < a.packets.size(); ++i) {
    const IndexedPacket& left = a.packets[i];
    const IndexedPacket& right = b.packets[i];
    EXPECT_EQ(left.pts, right.pts);
    EXPECT_EQ(left.raw_pts, right.raw_pts);
    EXPECT_EQ(left.raw_dts, right.raw_dts);
    EXPECT_EQ(left.position, right.position);
    EXPECT_EQ(left.size, right.size);
    EXPECT_EQ(left.frame, right.frame);
    EXPECT_EQ(left.start, right.start);
    EXPECT_EQ(left.key, right.key);
    EXPECT_EQ(left.disposable, right.disposable);
  }
  EXPECT_EQ(a.frame_packet, b.frame_packet);
  EXPECT_EQ(a.times, b.times);
  EXPECT_EQ(a.duration, b.duration);
  EXPECT_EQ(a.fps, b.fps);
  EXPECT_EQ(a.start_offset, b.start_offset);
  EXPECT_EQ(a.reorder_depth, b.reorder_depth);
  EXPECT_EQ(a.repaired_times, b.repaired_times);
}

TEST(IndexCacheTest, PacksAndUnpacks) {
  const VideoIndex index = small_index(1);
  const auto back = unpack_index(pack_index(index, "file 1"), "file 1");
  ASSERT_TRUE(back);
  expect_same(index, *back);
  EXPECT_FALSE(unpack_index(pack_index(index, "file 1"), "file 2"));
}

TEST(IndexCacheTest, RefusesEveryDamage) {
  const std::string bytes = pack_index(small_index(2), "file");
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(unpack_index(std::string_view(bytes).substr(0, size), "file")) << size;
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    EXPECT_FALSE(unpack_index(damaged, "file")) << at;
  }
  EXPECT_FALSE(unpack_index(bytes + "x", "file"));
}

// An index that another version kept is as if it were not there.
TEST(IndexCacheTest, RefusesOlderFormats) {
  std::string bytes = pack_index(small_index(2), "file");
  const std::string mark = "kinora index 2\n";
  ASSERT_TRUE(bytes.starts_with(mark));
  bytes[mark.size() - 2] = '1';
  const std::string body = bytes.substr(0, bytes.size() - 8);
  const uint64_t right = content_checksum(body);
  EXPECT_FALSE(unpack_index(body + std::string(reinterpret_cast<const char*>(&right), 8), "file"));
}

// An index whose checksum is right but whose numbers are not.
TEST(IndexCacheTest, RefusesNonsense) {
  const auto refused = [](const std::function<void(VideoIndex&)>& spoil) {
    VideoIndex index = small_index(3);
    spoil(index);
    return !unpack_index(pack_index(index, "file"), "file");
  };
  EXPECT_FALSE(refused([](VideoIndex&) {}));
  EXPECT_TRUE(refused([](VideoIndex& index) { index.packets[1].start = 7; }));
  EXPECT_TRUE(refused([](VideoIndex& index) { index.packets[1].frame = 7; }));
  EXPECT_TRUE(refused([](VideoIndex& index) { index.frame_packet[0] = -1; }));
  EXPECT_TRUE(refused([](VideoIndex& index) { index.frame_packet[0] = 1; }));
  EXPECT_TRUE(refused([](VideoIndex& index) { index.times[1] = std::nan(""); }));
  EXPECT_TRUE(refused([](VideoIndex& index) { index.times[0] = 1e9; }));
  EXPECT_TRUE(refused([](VideoIndex& index) {
    index.frame_packet.clear();
    index.times.clear();
    for (IndexedPacket& packet : index.packets) packet.frame = -1;
  }));
}

void set_age(const std::string& path, std::chrono::seconds age) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - age);
}

TEST(IndexCacheTest, KnowsTheFileItWasMadeOf) {
  const std::string folder = scratch_directory();
  const std::string file = folder + "/some.bin";
  const IndexCache cache(folder + "/cache");
  write_file(file, "first");
  EXPECT_EQ(IndexCache::identify(file), "") << "it has just been written";
  set_age(file, std::chrono::seconds(10));
  const std::string identity = IndexCache::identify(file);
  ASSERT_NE(identity, "");
  EXPECT_FALSE(cache.find(file, identity));
  const VideoIndex index = small_index(4);
  cache.keep(file, identity, index);
  const auto found = cache.find(file, identity);
  ASSERT_TRUE(found);
  expect_same(index, *found);

  set_age(file, std::chrono::seconds(5));
  const std::string later = IndexCache::identify(file);
  EXPECT_NE(later, identity);
  EXPECT_FALSE(cache.find(file, later));
  cache.keep(file, identity, index);  // made of the older state
  EXPECT_FALSE(cache.find(file, later));
  EXPECT_EQ(IndexCache::identify(folder + "/missing"), "");
}

TEST(IndexCacheTest, ForgetsWhatWasUsedLongestAgo) {
  const std::string folder = scratch_directory();
  const VideoIndex index = small_index(5);
  const auto size = static_cast<int64_t>(pack_index(index, std::string(200, 'x')).size());
  const IndexCache cache(folder + "/cache", 3 * size);
  std::vector<std::string> files;
  for (int i = 0; i < 6; ++i) {
    files.push_back(folder + "/" + std::to_string(i) + ".bin");
    write_file(files.back(), "content");
    set_age(files.back(), std::chrono::seconds(100));
    cache.keep(files.back(), IndexCache::identify(files.back()), index);
    for (const auto& entry : fs::directory_iterator(folder + "/cache")) {
      fs::last_write_time(entry, entry.last_write_time() - std::chrono::seconds(1));
    }
  }
  EXPECT_FALSE(cache.find(files[0], IndexCache::identify(files[0])));
  EXPECT_TRUE(cache.find(files[5], IndexCache::identify(files[5])));
}

// The same frames with and without; the second opening takes the kept index.
TEST(IndexCacheTest, ServesOpenVideo) {
  const std::string folder = scratch_directory();
  const std::string file = folder + "/clip.mp4";
  fs::copy_file(small_clip(), file);
  set_age(file, std::chrono::seconds(10));
  OpenOptions options;
  options.index_cache = folder + "/cache";
  options.index_cache_above = 0;
  const std::vector<double> times = open_video(file)->times();
  EXPECT_EQ(open_video(file, options)->times(), times);
  ASSERT_FALSE(fs::is_empty(folder + "/cache"));

  const auto video = open_video(file, options);
  EXPECT_EQ(video->info().frames, static_cast<int64_t>(times.size()));
  FrameStream stream = video->read(FrameChoice::rate(2), {});
  FrameStream plain = open_video(file)->read(FrameChoice::rate(2), {});
  while (const auto expected = plain.next()) {
    const auto group = stream.next();
    ASSERT_TRUE(group);
    EXPECT_EQ(group->index, expected->index);
    const auto bytes = static_cast<size_t>(expected->pixels.shape().elements());
    ASSERT_EQ(group->pixels.shape(), expected->pixels.shape());
    EXPECT_EQ(std::memcmp(group->pixels.data<uint8_t>(), expected->pixels.data<uint8_t>(), bytes),
              0);
  }
  EXPECT_FALSE(stream.next());

  // To see that the kept index is what is used: one of another clip's length in its place.
  const IndexCache cache(options.index_cache);
  cache.keep(file, IndexCache::identify(file), small_index(6));
  EXPECT_EQ(open_video(file, options)->info().frames, 7);

  options.index_cache_above = int64_t{1} << 40;
  EXPECT_EQ(open_video(file, options)->times(), times) << "small files are not kept";
}

}  // namespace
}  // namespace kinora
