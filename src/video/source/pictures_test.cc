// Photographs as Pillow shows them (tests/reference/make pictures): chroma,
// orientation, kinds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "video/test_media.h"
#include "video/video.h"

namespace kinora {
namespace {

namespace fs = std::filesystem;

const std::string folder = KINORA_SOURCE "/tests/fixtures/pictures/";
// Of 255. Without libjpeg it is FFmpeg that decodes JPEGs, and its inverse transform differs by up
// to 1 in luma and in chroma, which is 1 + 1.772 in blue.
#ifdef KINORA_TURBOJPEG
constexpr int most_levels = 0;
#else
constexpr int most_levels = 3;
#endif

struct Shown {
  FrameSize size;
  std::vector<std::vector<uint8_t>> frames;
};

Shown read(const std::string& path, const OpenOptions& options = {}) {
  const auto video = open_video(path, options);
  Shown shown;
  FrameStream stream = video->read(FrameChoice::all(), {});
  shown.size = stream.size();
  while (const auto group = stream.next()) {
    for (int64_t i = 0; i < group->frames(); ++i) {
      const ConstTensorView frame = ConstTensorView(group->pixels.view())[i];
      const auto* begin = reinterpret_cast<const uint8_t*>(frame.raw());
      shown.frames.emplace_back(begin, begin + frame.bytes());
    }
  }
  return shown;
}

int difference(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  if (a.size() != b.size()) return 256;
  int most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

std::string expected_of(const std::string& name) {
  std::string flat = name;
  flat[flat.rfind('.')] = '-';
  return folder + flat + ".expected.png";
}

std::vector<std::string> pictures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".expected.png") && name != "animated.webp") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Pictures, AreShownAsPillowShowsThem) {
  const std::vector<std::string> names = pictures();
  ASSERT_GE(names.size(), 19u);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const Shown expected = read(expected_of(name));
    const Shown shown = read(folder + name);
    ASSERT_EQ(shown.frames.size(), 1u);
    EXPECT_EQ(shown.size, expected.size);
    // Pillow's AVIF is libavif's, which rounds in its own way.
    const int most = name.ends_with(".avif") ? 2 : most_levels;
    EXPECT_LE(difference(shown.frames[0], expected.frames[0]), most);
  }
}

TEST(Pictures, TurnTheSameWayFromAKeptIndex) {
  OpenOptions options;
  options.index_cache = scratch_directory();
  options.index_cache_above = 0;
  for (const char* name : {"exif6.jpg", "exif6.png", "exif6.webp", "exif6.tiff", "exif3.jpg"}) {
    SCOPED_TRACE(name);
    const Shown first = read(folder + name, options);
    const Shown second = read(folder + name, options);
    EXPECT_EQ(first.size, read(expected_of(name)).size);
    EXPECT_EQ(second.size, first.size);
    EXPECT_EQ(second.frames, first.frames);
  }
  EXPECT_FALSE(fs::is_empty(options.index_cache));
}

TEST(Pictures, InAFolderEachTurnsByItself) {
  const std::string place = scratch_directory();
  const std::vector<std::string> names = {"exif6.jpg",  "exif6.png", "exif6.tiff",
                                          "exif6.webp", "exif7.png", "exif7.webp"};
  for (const std::string& name : names) fs::copy_file(folder + name, place + "/" + name);
  const Shown shown = read(place);
  ASSERT_EQ(shown.frames.size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_LE(difference(shown.frames[i], read(expected_of(names[i])).frames[0]), most_levels)
        << names[i];
  }
}

TEST(Pictures, KindsThatCannotBeReadAreNamed) {
  const std::string heic = scratch_directory() + "/a.heic";
  write_file(heic, std::string("\0\0\0\x18", 4) + "ftypheic" + std::string(200, '\0'));
  const std::pair<std::string, const char*> cases[] = {{folder + "animated.webp", "animated WebP"},
                                                       {heic, "HEIC"}};
  for (const auto& [path, kind] : cases) {
    try {
      open_video(path)->info();
      ADD_FAILURE() << kind;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unsupported) << error.what();
      EXPECT_NE(std::string(error.what()).find(kind), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace kinora
