#include "ops/pool.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "ops/op_test_support.h"

namespace kinora {
namespace {

using namespace testing;

struct Sizes {
  int64_t frames, height, width, channels;
  int64_t offset(int64_t f, int64_t y, int64_t x, int64_t c) const {
    return ((f * height + y) * width + x) * channels + c;
  }
};

// Linear interpolation along one axis at half-pixel centres, clamped at the edges.
double place(int64_t out, int64_t in_size, int64_t out_size) {
  const double at = (static_cast<double>(out) + 0.5) * static_cast<double>(in_size) /
                        static_cast<double>(out_size) -
                    0.5;
  return std::clamp(at, 0.0, static_cast<double>(in_size - 1));
}

// Places are computed in f32 (as torch does), which moves them by up to 27 × 2^-24.
TEST(BilinearPool, EqualsTheReference) {
  KINORA_FRESH_RANDOM(random);
  for (const auto& [h, w, oh, ow] : {std::array<int64_t, 4>{27, 27, 14, 14},
                                     {27, 27, 13, 14},
                                     {5, 7, 5, 7},
                                     {1, 1, 3, 2},
                                     {24, 24, 12, 12},
                                     {3, 9, 7, 4},
                                     {2, 2, 1, 1}}) {
    const Sizes from{3, h, w, 65}, to{3, oh, ow, 65};
    auto x = TestTensor::random(random, DType::f32, {3, h, w, 65}, 2);
    const auto values = x.values();
    std::vector<double> expected;
    for (int64_t f = 0; f < 3; ++f) {
      for (int64_t y = 0; y < oh; ++y) {
        for (int64_t column = 0; column < ow; ++column) {
          const double py = place(y, h, oh), px = place(column, w, ow);
          const auto y0 = static_cast<int64_t>(py), x0 = static_cast<int64_t>(px);
          const int64_t y1 = std::min(y0 + 1, h - 1), x1 = std::min(x0 + 1, w - 1);
          const double sy = py - static_cast<double>(y0), sx = px - static_cast<double>(x0);
          for (int64_t c = 0; c < 65; ++c) {
            const auto at = [&](int64_t row, int64_t col) {
              return values[static_cast<size_t>(from.offset(f, row, col, c))];
            };
            expected.push_back((1 - sy) * ((1 - sx) * at(y0, x0) + sx * at(y0, x1)) +
                               sy * ((1 - sx) * at(y1, x0) + sx * at(y1, x1)));
          }
        }
      }
    }
    for_each_context([&](const Context& context) {
      auto out = TestTensor::poisoned(DType::f32, {3, oh, ow, 65}, 1);
      bilinear_pool(context, x.on(context), out.on(context));
      expect_close(out, expected, 4e-6);
      auto one = TestTensor::poisoned(DType::f32, {oh, ow, 65});
      bilinear_pool(context, x.on(context)[2], one.on(context));
      expect_close(one, {expected.begin() + to.offset(2, 0, 0, 0), expected.end()}, 4e-6);
    });
  }
}

TEST(WindowPool, AveragesAndTakesTheLargest) {
  KINORA_FRESH_RANDOM(random);
  for (const auto& [h, w, window] :
       {std::array<int64_t, 3>{27, 27, 2}, {24, 25, 3}, {5, 4, 1}, {7, 9, 4}, {2, 2, 3}}) {
    const Sizes from{2, h, w, 33};
    auto x = TestTensor::random(random, DType::f32, {2, h, w, 33}, 3);
    const auto values = x.values();
    std::vector<double> average, largest;
    for (int64_t f = 0; f < 2; ++f) {
      for (int64_t y = 0; y < h / window; ++y) {
        for (int64_t column = 0; column < w / window; ++column) {
          for (int64_t c = 0; c < 33; ++c) {
            double sum = 0, highest = -INFINITY;
            for (int64_t dy = 0; dy < window; ++dy) {
              for (int64_t dx = 0; dx < window; ++dx) {
                const double value = values[static_cast<size_t>(
                    from.offset(f, y * window + dy, column * window + dx, c))];
                sum += value;
                highest = std::max(highest, value);
              }
            }
            average.push_back(sum / static_cast<double>(window * window));
            largest.push_back(highest);
          }
        }
      }
    }
    for_each_context([&](const Context& context) {
      const Shape shape{2, h / window, w / window, 33};
      auto out = TestTensor::poisoned(DType::f32, shape, 1);
      average_pool(context, x.on(context), window, out.on(context));
      expect_close(out, average, 5e-7);
      auto most = TestTensor::poisoned(DType::f32, shape);
      max_pool(context, x.on(context), window, most.on(context));
      expect_close(most, largest, 0);
    });
  }
}

TEST(Pool, RefusesWhatDoesNotFit) {
  const ThreadPool pool(1);
  const Context context(pool);
  Tensor x(DType::f32, {4, 4, 8}), out(DType::f32, {2, 2, 8}), other(DType::f32, {2, 2, 7});
  expect_error("bilinear_pool: channels of x and out differ",
               [&] { bilinear_pool(context, x, other); });
  expect_error("average_pool: out must have the height", [&] { average_pool(context, x, 3, out); });
  expect_error("max_pool: the window must be at least 1", [&] { max_pool(context, x, 0, out); });
}

}  // namespace
}  // namespace kinora
