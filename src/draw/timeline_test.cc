#include "draw/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "draw/test_png.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

const std::vector<TimelineBar> bars = {{"decode 1", "decode <0.0 s>", 0, 2},
                                       {"decode 2", "decode & more", 0.5, 1},
                                       {"prefill", "prefill 12 tokens", 2, 4}};

int coloured_columns(const Image& image, int y) {
  int count = 0;
  for (int x = 0; x < image.width(); ++x) {
    const uint8_t* pixel = image.row(y) + 3 * x;
    const auto [low, high] = std::minmax({pixel[0], pixel[1], pixel[2]});
    count += high - low > 40;
  }
  return count;
}

TEST(Timeline, BarsAreAsLongAsTheirTime) {
  const Image image = chart_image(timeline_chart(bars, "three bars", 600));
  ASSERT_EQ(image.width(), 600);
  // The middles of the three lanes, from the layout: three of 24 pixels, then the marks of time.
  const int top = image.height() - 2 * 12 - text_height({12, false}) - 3 * 24;
  const int first = coloured_columns(image, top + 12);
  const int second = coloured_columns(image, top + 36);
  const int third = coloured_columns(image, top + 60);
  EXPECT_NEAR(first, third, 2);
  EXPECT_NEAR(first, 4 * second, 8);
  EXPECT_GT(second, 40);
}

TEST(Timeline, SvgNamesEveryBarAndEscapesText) {
  const std::string svg = chart_svg(timeline_chart(bars, "a < b"));
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_NE(svg.find("decode &lt;0.0 s&gt;: 0.000 s to 2.000 s"), std::string::npos);
  EXPECT_NE(svg.find("decode &amp; more"), std::string::npos);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(Timeline, TheEndingDecidesTheKind) {
  const testing::TempDir directory;
  write_timeline(directory.file("t.png"), bars, "t");
  EXPECT_GT(testing::read_png(directory.file("t.png")).width(), 100);
  write_timeline(directory.file("t.svg"), {}, "nothing happened");
  EXPECT_NE(real_files().read(directory.file("t.svg")).find("nothing happened"), std::string::npos);
  EXPECT_THROW(write_timeline(directory.file("t.gif"), bars, "t"), Error);
}

}  // namespace
}  // namespace kinora
