#include "server/scenes.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace kinora::server {
namespace {

// `count` frames of one look, with a little noise.
void add(std::vector<SmallFrame>& frames, Random& random, int look, int count) {
  for (int i = 0; i < count; ++i) {
    SmallFrame frame{static_cast<double>(frames.size()), std::vector<uint8_t>(300)};
    for (size_t k = 0; k < frame.pixels.size(); ++k) {
      const bool bright = static_cast<int>(k / 30) % 5 == look;
      frame.pixels[k] = static_cast<uint8_t>((bright ? 200 : 40) + random.next() % 5);
    }
    frames.push_back(std::move(frame));
  }
}

TEST(Scenes, AreCutWhereFramesDifferAndKnownAgain) {
  Random random(7);
  std::vector<SmallFrame> frames;
  add(frames, random, 0, 10);
  add(frames, random, 3, 7);
  add(frames, random, 0, 12);
  add(frames, random, 1, 5);
  const std::vector<Scene> scenes = find_scenes(frames, 34.5);
  ASSERT_EQ(scenes.size(), 4u);
  const std::vector<double> starts{0, 10, 17, 29};
  const std::vector<int64_t> clusters{0, 1, 0, 2};
  for (size_t i = 0; i < scenes.size(); ++i) {
    EXPECT_EQ(scenes[i].start, starts[i]);
    EXPECT_EQ(scenes[i].end, i + 1 < scenes.size() ? starts[i + 1] : 34.5);
    EXPECT_EQ(scenes[i].cluster, clusters[i]) << i;
  }
}

TEST(Scenes, AreOneWhereNothingChanges) {
  Random random(8);
  std::vector<SmallFrame> frames;
  add(frames, random, 2, 50);
  ASSERT_EQ(find_scenes(frames, 50).size(), 1u);
  EXPECT_EQ(find_scenes(frames, 50)[0].end, 50);
  EXPECT_EQ(find_scenes({}, 3).size(), 1u);
  frames.resize(1);
  EXPECT_EQ(find_scenes(frames, 1).size(), 1u);
}

}  // namespace
}  // namespace kinora::server
