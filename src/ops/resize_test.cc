#include "ops/resize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "ops/resize_axis.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using Pixels = std::vector<uint8_t>;

ConstTensorView view(const Pixels& pixels, int height, int width) {
  return ConstTensorView::of(pixels.data(), {height, width, 3});
}

Pixels resized(const Context& context, const Pixels& source, int height, int width,
               ResizeFilter filter, int target_height, int target_width) {
  Pixels target(static_cast<size_t>(target_height * target_width * 3));
  resize(context, view(source, height, width), filter,
         TensorView::of(target.data(), {target_height, target_width, 3}));
  return target;
}

// One pixel of one pass in double precision, rounded and clamped; `step` is the distance of
// neighbours along the axis.
uint8_t filtered(const uint8_t* line, int64_t step, const RealTaps& taps) {
  double sum = 0;
  for (size_t j = 0; j < taps.weights.size(); ++j)
    sum += taps.weights[j] * line[(taps.begin + static_cast<int64_t>(j)) * step];
  return static_cast<uint8_t>(std::clamp(std::floor(sum + 0.5), 0.0, 255.0));
}

Pixels reference(const Pixels& source, int height, int width, ResizeFilter filter,
                 int target_height, int target_width) {
  const auto columns = real_resize_taps(filter, width, target_width);
  const auto rows = real_resize_taps(filter, height, target_height);
  Pixels wide(static_cast<size_t>(height * target_width * 3));
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < target_width; ++x)
      for (int c = 0; c < 3; ++c)
        wide[static_cast<size_t>((y * target_width + x) * 3 + c)] =
            filtered(source.data() + y * width * 3 + c, 3, columns[static_cast<size_t>(x)]);
  Pixels target(static_cast<size_t>(target_height * target_width * 3));
  for (int y = 0; y < target_height; ++y)
    for (int i = 0; i < target_width * 3; ++i)
      target[static_cast<size_t>(y * target_width * 3 + i)] =
          filtered(wide.data() + i, target_width * 3, rows[static_cast<size_t>(y)]);
  return target;
}

int largest_difference(const Pixels& a, const Pixels& b) {
  int largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

constexpr ResizeFilter all_filters[] = {ResizeFilter::bicubic, ResizeFilter::area,
                                        ResizeFilter::bilinear, ResizeFilter::nearest};

// Integer weights may turn a rounding of the first pass the other way, at every pixel that one of
// the second pass is made of: its sum is then off by 1, with cubic weights by their absolute
// values, 1.3 in sum. The rounding of the second pass may add another one.
TEST(Resize, MatchesDoublePrecision) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  const int sides[] = {1, 2, 3, 15, 16, 17, 31, 63, 64, 65, 127, 129, 200, 301};
  for (const ResizeFilter filter : all_filters) {
    for (int trial = 0; trial < 40; ++trial) {
      const auto side = [&] { return sides[random.below(std::size(sides))]; };
      const int height = side(), width = side(), target_height = side(), target_width = side();
      SCOPED_TRACE(std::string(resize_filter_name(filter)) + " " + std::to_string(width) + "x" +
                   std::to_string(height) + " to " + std::to_string(target_width) + "x" +
                   std::to_string(target_height));
      Pixels source(static_cast<size_t>(height * width * 3));
      const bool sharp = random.below(2) == 0;
      for (uint8_t& pixel : source)
        pixel = static_cast<uint8_t>(sharp ? 255 * random.below(2) : random.below(256));
      const Pixels ours =
          resized(context, source, height, width, filter, target_height, target_width);
      const Pixels expected = reference(source, height, width, filter, target_height, target_width);
      ASSERT_LE(largest_difference(ours, expected), filter == ResizeFilter::nearest ? 0 : 2);
    }
  }
}

TEST(Resize, IsTheSameForAnyNumberOfThreads) {
  KINORA_FRESH_RANDOM(random);
  Pixels source(static_cast<size_t>(333 * 517 * 3));
  for (uint8_t& pixel : source) pixel = static_cast<uint8_t>(random.below(256));
  const ThreadPool one(1), many(5);
  for (const ResizeFilter filter : all_filters)
    EXPECT_EQ(resized(Context(one), source, 333, 517, filter, 224, 140),
              resized(Context(many), source, 333, 517, filter, 224, 140));
}

TEST(Resize, KeepsFlatPicturesFlat) {
  const ThreadPool pool(1);
  for (const ResizeFilter filter : all_filters)
    for (const int level : {0, 1, 127, 255}) {
      const Pixels source(97 * 61 * 3, static_cast<uint8_t>(level));
      for (const uint8_t pixel : resized(Context(pool), source, 97, 61, filter, 28, 84))
        ASSERT_EQ(pixel, level) << resize_filter_name(filter);
    }
}

TEST(Resize, WritesOnlyTheTargetAndTakesStridedRows) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  constexpr int height = 37, width = 53, target_height = 19, target_width = 21, pad = 11;
  Pixels source(height * width * 3);
  for (uint8_t& pixel : source) pixel = static_cast<uint8_t>(random.below(256));
  const Pixels expected = resized(Context(pool), source, height, width, ResizeFilter::bicubic,
                                  target_height, target_width);
  constexpr int stride = target_width * 3 + pad;
  Pixels canvas(target_height * stride, 0xab);
  const TensorView target(reinterpret_cast<std::byte*>(canvas.data()), DType::u8,
                          {target_height, target_width, 3}, {stride, 3, 1}, Device::cpu());
  resize(Context(pool), view(source, height, width), ResizeFilter::bicubic, target);
  for (int y = 0; y < target_height; ++y)
    for (int i = 0; i < stride; ++i)
      ASSERT_EQ(
          canvas[static_cast<size_t>(y * stride + i)],
          i < target_width * 3 ? expected[static_cast<size_t>(y * target_width * 3 + i)] : 0xab);
}

TEST(Resize, RefusesEmptyAndHugeSides) {
  EXPECT_THROW(make_resize_axis(ResizeFilter::bicubic, 0, 5), Error);
  EXPECT_THROW(make_resize_axis(ResizeFilter::bicubic, 5, 0), Error);
  EXPECT_THROW(make_resize_axis(ResizeFilter::area, 1 << 20, 5), Error);
}

TEST(Resize, FiltersHaveNames) {
  for (const ResizeFilter filter : all_filters)
    EXPECT_EQ(parse_resize_filter(resize_filter_name(filter)), filter);
  EXPECT_FALSE(parse_resize_filter("lanczos"));
}

// The procedural picture of tests/reference/README.md, frame 0.
Pixels procedural(uint32_t seed, bool sharp, uint32_t height, uint32_t width) {
  Pixels pixels;
  for (uint32_t y = 0; y < height; ++y)
    for (uint32_t x = 0; x < width; ++x)
      for (uint32_t c = 0; c < 3; ++c) {
        const uint32_t wave = (x * (3 + seed % 5) + y * (2 + seed % 7) + c * 85 + seed * 101) % 512;
        const uint32_t ramp = wave < 256 ? wave : 511 - wave;
        uint32_t hash =
            x * 73856093u ^ y * 19349663u ^ 83492791u ^ (c + 1) * 2654435761u ^ (seed + 1) * 40503u;
        hash ^= hash >> 13;
        hash *= 1540483477u;
        hash ^= hash >> 15;
        const auto pixel = static_cast<uint8_t>(ramp * 3 / 4 + hash % 64);
        pixels.push_back(sharp ? (pixel >= 128 ? 255 : 0) : pixel);
      }
  return pixels;
}

TEST(Resize, IsBitIdenticalToPyTorch) {
  const std::string bytes = real_files().read(KINORA_FIXTURES "/resize/expected.bin");
  ASSERT_EQ(bytes.substr(0, 8), "KNRRSZ01");
  size_t at = 8;
  const auto number = [&] {
    uint32_t value = 0;
    std::memcpy(&value, bytes.data() + at, 4);
    at += 4;
    return value;
  };
  const ThreadPool pool(1);
  const uint32_t cases = number();
  ASSERT_GE(cases, 10u);
  for (uint32_t i = 0; i < cases; ++i) {
    const auto filter = static_cast<ResizeFilter>(number());
    const uint32_t seed = number();
    const bool sharp = number() != 0;
    const uint32_t height = number(), width = number();
    const uint32_t target_height = number(), target_width = number();
    const Pixels ours = resized(Context(pool), procedural(seed, sharp, height, width),
                                static_cast<int>(height), static_cast<int>(width), filter,
                                static_cast<int>(target_height), static_cast<int>(target_width));
    const auto* expected = reinterpret_cast<const uint8_t*>(bytes.data() + at);
    ASSERT_LE(at + ours.size(), bytes.size());
    EXPECT_EQ(ours, Pixels(expected, expected + ours.size())) << "case " << i;
    at += ours.size();
  }
  EXPECT_EQ(at, bytes.size());
}

}  // namespace
}  // namespace kinora
