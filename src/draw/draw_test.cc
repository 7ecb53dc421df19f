#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "draw/canvas.h"
#include "draw/colours.h"
#include "draw/contact_sheet.h"
#include "draw/image.h"
#include "draw/png_file.h"
#include "draw/test_png.h"
#include "draw/text.h"
#include "draw/utf8.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

constexpr Colour white = {255, 255, 255};
constexpr Colour red = {255, 0, 0};

int count(const Image& image, Colour colour) {
  int pixels = 0;
  for (int y = 0; y < image.height(); ++y)
    for (int x = 0; x < image.width(); ++x) pixels += image.at(x, y) == colour;
  return pixels;
}

Image random_image(Random& random, int width, int height) {
  Image image(width, height);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width * 3; ++x) image.row(y)[x] = static_cast<uint8_t>(random.below(256));
  return image;
}

TEST(Image, MarksAreClipped) {
  Image image(20, 10);
  image.fill({-5, -5, 8, 7}, white);
  EXPECT_EQ(count(image, white), 3 * 2);
  image.fill({0, 0, 20, 10}, {});
  constexpr int far = std::numeric_limits<int>::max();
  image.fill({18, 8, far, far}, white);
  EXPECT_EQ(count(image, white), 4);
  image.fill({3, 3, -4, 5}, white);
  EXPECT_EQ(count(image, white), 4);
  image.set(-1, 0, white);
  image.set(20, 9, white);
  EXPECT_EQ(count(image, white), 4);
}

TEST(Image, Lines) {
  Image lines(20, 10);
  lines.line(1, 1, 8, 1, white);
  EXPECT_EQ(count(lines, white), 8);
  lines.line(3, 8, 3, 4, white);
  EXPECT_EQ(count(lines, white), 8 + 5);
  Image diagonal(20, 20);
  diagonal.line(15, 2, 4, 13, red);
  for (int i = 0; i <= 11; ++i) EXPECT_EQ(diagonal.at(15 - i, 2 + i), red);
  EXPECT_EQ(count(diagonal, red), 12);
  Image outside(4, 4);
  outside.line(-10, 1, 10, 1, red);
  EXPECT_EQ(count(outside, red), 4);
}

TEST(Image, Pastes) {
  KINORA_FRESH_RANDOM(random);
  const Image small = random_image(random, 5, 4);
  Image image(10, 10);
  image.paste(small.pixels().data(), 5, 4, 15, -2, 8);
  for (int y = 0; y < 2; ++y)
    for (int x = 0; x < 3; ++x) EXPECT_EQ(image.at(x, 8 + y), small.at(x + 2, y));
  EXPECT_EQ(image.at(3, 8), Colour{});
}

TEST(Image, RefusesTooManyPixels) {
  EXPECT_THROW(Image(40000, 2), Error);
  EXPECT_THROW(Image(-1, 2), Error);
  EXPECT_THROW(Image(32768, 32768), Error);
}

TEST(Png, RoundTrip) {
  KINORA_FRESH_RANDOM(random);
  const testing::TempDir directory;
  for (const auto& [width, height] : {std::pair(1, 1), {63, 65}, {129, 7}}) {
    const Image image = random_image(random, width, height);
    write_png(directory.file("a.png"), image);
    const Image again = testing::read_png(directory.file("a.png"));
    EXPECT_EQ(again.width(), width);
    EXPECT_EQ(again.height(), height);
    EXPECT_EQ(again.pixels(), image.pixels());
  }
}

TEST(Png, RefusesAnEmptyPicture) { EXPECT_THROW(encode_png(Image(0, 5)), Error); }

int inked(const Image& image) { return image.width() * image.height() - count(image, Colour{}); }

TEST(Text, EveryLetterIsDifferent) {
  std::set<std::string> seen;
  const TextStyle style{14, false};
  for (char letter = '!'; letter <= '~'; ++letter) {
    Image image(24, text_height(style));
    draw_text(image, 0, 0, std::string(1, letter), white, style);
    EXPECT_GT(inked(image), 2) << letter;
    const std::vector<uint8_t>& pixels = image.pixels();
    EXPECT_TRUE(seen.emplace(pixels.begin(), pixels.end()).second) << letter;
  }
}

TEST(Text, StaysWithinItsBox) {
  for (const double size : {9.0, 12.0, 24.0}) {
    for (const bool bold : {false, true}) {
      const TextStyle style{size, bold};
      const std::string text = "length happens, Äg|";
      const int width = text_width(text, style), height = text_height(style);
      EXPECT_GT(height, size * 0.9);
      EXPECT_LT(height, size * 1.6);
      Image image(width + 20, height + 20);
      draw_text(image, 10, 10, text, white, style);
      Image inside(width + 2, height + 2);
      inside.paste(image.row(9) + 9 * 3, width + 2, height + 2,
                   static_cast<size_t>(image.width()) * 3, 0, 0);
      EXPECT_EQ(inked(inside), inked(image)) << size << bold;
      EXPECT_GT(inked(image), 50);
    }
  }
  EXPECT_GT(text_width("wide", {12, true}), text_width("wide", {12, false}));
  EXPECT_GT(text_width("mmm"), text_width("iii"));
  EXPECT_EQ(text_width(""), 0);
}

TEST(Text, IsClippedAndTakesAnyBytes) {
  KINORA_FRESH_RANDOM(random);
  for (int i = 0; i < 50; ++i) {
    std::string bytes;
    for (int64_t j = random.below(40); j >= 0; --j) bytes += static_cast<char>(random.below(256));
    Image image(30, 20);
    const auto place = [&] { return static_cast<int>(random.below(80)) - 40; };
    draw_text(image, place(), place(), bytes, white);
    EXPECT_GE(text_width(bytes), 0);
  }
  Image image(30, 20);
  draw_text(image, 0, 0, std::string(1 << 16, 'x'), white);
  EXPECT_GT(inked(image), 0);
}

TEST(Text, CleanTextIsValid) {
  EXPECT_EQ(clean_utf8("a\tb\x01 ä€😀"), "a b  ä€😀");
  EXPECT_EQ(clean_utf8("\xff"
                       "a\xc3"),
            "?a?");
  EXPECT_EQ(clean_utf8("\xc0\xaf\xed\xa0\x80"), "?????");
}

TEST(Text, WhatDoesNotFitEndsInDots) {
  const std::string text = "größer als das Bild – viel größer";
  EXPECT_EQ(fit_text(text, 1000), text);
  size_t before = 0;
  for (int width = 0; width < text_width(text); width += 3) {
    const std::string cut = fit_text(text, width);
    EXPECT_LE(text_width(cut), width);
    EXPECT_TRUE(cut.empty() || cut.ends_with("…")) << cut;
    EXPECT_EQ(clean_utf8(cut), cut);  // no character is cut in two
    EXPECT_GE(cut.size(), before);
    before = cut.size();
  }
  EXPECT_GT(before, 30u);
}

TEST(Chart, OnePainterMakesBothPictures) {
  Chart chart;
  chart.size = {120, 40};
  chart.paint = [](Canvas& canvas) {
    canvas.fill(10, 10, 50, 5, red, "a <note>");
    canvas.text(10, 20, "words & more", {0, 0, 0});
  };
  const Image image = chart_image(chart);
  EXPECT_EQ(count(image, red), 250);
  const std::string svg = chart_svg(chart);
  EXPECT_NE(svg.find("fill=\"#ff0000\"><title>a &lt;note&gt;</title>"), std::string::npos) << svg;
  EXPECT_NE(svg.find(">words &amp; more</text>"), std::string::npos) << svg;
  EXPECT_THROW(check_chart_path("a.gif", "a chart"), Error);
}

TEST(Text, TimeLabels) {
  EXPECT_EQ(time_label(0), "0:00.000");
  EXPECT_EQ(time_label(7.25), "0:07.250");
  EXPECT_EQ(time_label(59.9996), "1:00.000");
  EXPECT_EQ(time_label(3723.5, 1), "1:02:03.5");
  EXPECT_EQ(time_label(59.6, 0), "1:00");
  EXPECT_EQ(time_label(-1.5, 1), "-0:01.5");
  EXPECT_EQ(time_label(NAN), "?");
}

TEST(Colours, BrightnessRises) {
  double before = -1;
  for (int i = 0; i <= 100; ++i) {
    const Colour colour = heat_colour(i / 100.0);
    const double brightness = 0.2126 * colour.red + 0.7152 * colour.green + 0.0722 * colour.blue;
    EXPECT_GT(brightness, before);
    before = brightness;
  }
  EXPECT_EQ(heat_colour(-5), heat_colour(0));
  EXPECT_EQ(heat_colour(5), heat_colour(1));
  EXPECT_EQ(heat_colour(NAN), (Colour{128, 128, 128}));
}

TEST(ContactSheet, PutsFramesInOrder) {
  ContactSheetOptions options;
  options.columns = 3;
  ContactSheet sheet(5, 40, 30, "five frames", options);
  EXPECT_EQ(sheet.columns(), 3);
  EXPECT_EQ(sheet.rows(), 2);
  for (int i = 0; i < 5; ++i) {
    const Image frame(40, 30, {static_cast<uint8_t>(100 + i), 7, 9});
    sheet.add(frame.pixels().data(), 120, time_label(i));
  }
  const Image& image = sheet.image();
  std::vector<std::pair<int, int>> corners;
  for (int i = 0; i < 5; ++i) {
    const Colour colour = {static_cast<uint8_t>(100 + i), 7, 9};
    EXPECT_EQ(count(image, colour), 40 * 30);
    for (int y = 0; y < image.height() && static_cast<int>(corners.size()) == i; ++y)
      for (int x = 0; x < image.width(); ++x)
        if (image.at(x, y) == colour) {
          corners.emplace_back(y, x);
          break;
        }
  }
  ASSERT_EQ(corners.size(), 5u);
  EXPECT_TRUE(std::is_sorted(corners.begin(), corners.end()));
  EXPECT_EQ(corners[0].first, corners[2].first);
  EXPECT_LT(corners[2].first + 30, corners[3].first);
}

TEST(ContactSheet, RefusesNonsense) {
  EXPECT_THROW(ContactSheet(0, 10, 10, ""), Error);
  EXPECT_THROW(ContactSheet(1 << 19, 448, 448, ""), Error);
  EXPECT_THROW(ContactSheet(int64_t{1} << 40, 448, 448, ""), Error);
  ContactSheet one(1, 10, 10, "");
  const Image frame(10, 10);
  one.add(frame.pixels().data(), 30, "");
  EXPECT_THROW(one.add(frame.pixels().data(), 30, ""), Error);
}

}  // namespace
}  // namespace kinora
