#include "ops/rope.h"

#include <gtest/gtest.h>

#include "ops/op_test_support.h"

namespace kinora {
namespace {

using namespace testing;

std::vector<double> host_values(const Tensor& tensor) {
  const Tensor host = tensor.to(Device::cpu());
  return {host.data<float>(), host.data<float>() + host.elements()};
}

TEST(RopeTable, TurnsByPositionTimesFrequency) {
  KINORA_FRESH_RANDOM(random);
  const auto frequencies = rope_inverse_frequencies(128, 1e6);
  ASSERT_EQ(frequencies.size(), 64u);
  EXPECT_NEAR(frequencies[1], std::pow(1e6, -2.0 / 128), 1e-7);
  std::vector<int64_t> positions{0, 1, 2, 100'000, 10'000'000, -5};
  for (int i = 0; i < 100; ++i) positions.push_back(random.below(1'000'000));
  for_each_context([&](const Context& context) {
    const RopeTable table = rope_table(context, frequencies, positions, 0.5);
    ASSERT_EQ(table.cos.shape(), (Shape{static_cast<int64_t>(positions.size()), 64}));
    const auto cos = host_values(table.cos), sin = host_values(table.sin);
    for (size_t row = 0; row < positions.size(); ++row) {
      for (size_t i = 0; i < 64; ++i) {
        const double angle = static_cast<double>(positions[row]) * frequencies[i];
        EXPECT_NEAR(cos[row * 64 + i], 0.5 * std::cos(angle), 1e-7);
        EXPECT_NEAR(sin[row * 64 + i], 0.5 * std::sin(angle), 1e-7);
      }
    }
  });
}

TEST(RopeTable, MropeTakesEachColumnFromItsAxis) {
  KINORA_FRESH_RANDOM(random);
  const auto frequencies = rope_inverse_frequencies(128, 1e6);
  std::vector<int32_t> axes;
  for (int i = 0; i < 64; ++i) axes.push_back(static_cast<int32_t>(random.below(3)));
  std::vector<std::array<int64_t, 3>> positions;
  for (int i = 0; i < 37; ++i) {
    positions.push_back({random.below(5000), random.below(60), random.below(90)});
  }
  for_each_context([&](const Context& context) {
    const RopeTable table = mrope_table(context, frequencies, positions, axes);
    const auto sin = host_values(table.sin);
    for (size_t row = 0; row < positions.size(); ++row) {
      for (size_t i = 0; i < 64; ++i) {
        const auto axis = static_cast<size_t>(axes[i]);
        const double angle = static_cast<double>(positions[row][axis]) * frequencies[i];
        EXPECT_NEAR(sin[row * 64 + i], std::sin(angle), 1e-7);
      }
    }
    const std::vector<int32_t> few(63, 0), beyond(64, 3);
    expect_error("mrope_table: one of three axes",
                 [&] { mrope_table(context, frequencies, positions, few); });
    expect_error("mrope_table: one of three axes",
                 [&] { mrope_table(context, frequencies, positions, beyond); });
  });
}

TEST(RopeTable, VisionTakesHeightThenWidth) {
  const auto frequencies = rope_inverse_frequencies(40, 10000);  // heads of 80
  const std::vector<std::array<int64_t, 2>> positions{{0, 0}, {3, 7}, {41, 2}};
  for_each_context([&](const Context& context) {
    const RopeTable table = vision_rope_table(context, frequencies, positions);
    ASSERT_EQ(table.cos.shape(), (Shape{3, 40}));
    const auto cos = host_values(table.cos);
    for (size_t row = 0; row < 3; ++row) {
      for (size_t i = 0; i < 40; ++i) {
        const double angle = static_cast<double>(positions[row][i / 20]) * frequencies[i % 20];
        EXPECT_NEAR(cos[row * 40 + i], std::cos(angle), 1e-7);
      }
    }
  });
}

TEST(ApplyRope, RotatesHalvesOfEveryHead) {
  KINORA_FRESH_RANDOM(random);
  for (const auto& [rows, heads, d] :
       {std::array<int64_t, 3>{1, 1, 2}, {5, 3, 6}, {7, 2, 80}, {65, 14, 64}, {3, 5, 126}}) {
    const int64_t half = d / 2;
    std::vector<int64_t> positions;
    for (int64_t row = 0; row < rows; ++row) positions.push_back(random.below(100'000));
    const auto frequencies = rope_inverse_frequencies(d, 1e4);
    const auto before = TestTensor::random(random, DType::f32, {rows, heads, d}, 4);
    const auto x = before.copy().values();
    std::vector<double> expected(x.size());
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t i = 0; i < half; ++i) {
          const auto first = static_cast<size_t>((row * heads + head) * d + i);
          const size_t second = first + static_cast<size_t>(half);
          const double angle = static_cast<double>(positions[static_cast<size_t>(row)]) *
                               frequencies[static_cast<size_t>(i)];
          expected[first] = x[first] * std::cos(angle) - x[second] * std::sin(angle);
          expected[second] = x[second] * std::cos(angle) + x[first] * std::sin(angle);
        }
      }
    }
    for_each_context([&](const Context& context) {
      auto turned = before.copy();
      apply_rope(context, rope_table(context, frequencies, positions), turned.on(context));
      expect_close(turned, expected, 2e-7);
    });
  }
}

TEST(ApplyRope, RefusesWhatDoesNotFit) {
  const ThreadPool pool(1);
  const Context context(pool);
  Tensor cos(DType::f32, {2, 3}), x(DType::f32, {2, 1, 6}), odd(DType::f32, {2, 1, 7}),
      rows(DType::f32, {3, 1, 6});
  EXPECT_NO_THROW(
      apply_rope(context, Tensor::zeros(DType::f32, {2, 3}), Tensor::zeros(DType::f32, {2, 3}), x));
  expect_error("apply_rope: a head must have an even number",
               [&] { apply_rope(context, cos, cos, odd); });
  expect_error("apply_rope: cos has shape [2, 3], expected [3, 3]",
               [&] { apply_rope(context, cos, cos, rows); });
}

TEST(Rerotate, MovesKeysByTheDifferenceOfTheirPositions) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t d : {2, 64, 128, 320}) {
    const auto frequencies = rope_inverse_frequencies(d, 1e6);
    std::vector<int32_t> axes;
    for (int64_t i = 0; i < d / 2; ++i) axes.push_back(static_cast<int32_t>(random.below(3)));
    for (const int64_t rows : {1, 63, 129}) {
      const int64_t heads = 1 + random.below(3);
      std::vector<std::array<int32_t, 3>> moves;
      const auto around = [&](int32_t most) {
        return static_cast<int32_t>(random.below(2 * most)) - most;
      };
      for (int64_t i = 0; i < rows; ++i) {
        moves.push_back({around(100'000), around(30), around(30)});
      }
      const auto values = random_floats(random, rows * heads * d);
      for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        for_each_context([&](const Context& context) {
          if (type == DType::f16 && !context.device.is_cpu()) return;
          Tensor keys(type, {rows, heads, d});
          for (size_t i = 0; i < values.size(); ++i) {
            put_float(type, values[i],
                      keys.view().raw() + static_cast<int64_t>(i) * dtype_size(type));
          }
          const Tensor before = keys.clone();
          Tensor there = keys.to(context.device).clone();
          rerotate(context, frequencies, axes, moves, there);
          const Tensor after = there.to(Device::cpu());
          const auto at = [&](const Tensor& tensor, int64_t row, int64_t head, int64_t column) {
            return double{as_float(type, tensor.view().raw() + ((row * heads + head) * d + column) *
                                                                   dtype_size(type))};
          };
          double worst = 0;
          for (int64_t row = 0; row < rows; ++row) {
            for (int64_t head = 0; head < heads; ++head) {
              for (int64_t i = 0; i < d / 2; ++i) {
                const auto column = static_cast<size_t>(i);
                const auto axis = static_cast<size_t>(axes[column]);
                const double angle = static_cast<double>(moves[static_cast<size_t>(row)][axis]) *
                                     frequencies[column];
                const double x = at(before, row, head, i), y = at(before, row, head, i + d / 2);
                const double size = std::hypot(x, y) + 1e-30;
                const double c = std::cos(angle), s = std::sin(angle);
                worst =
                    std::max({worst, std::abs(at(after, row, head, i) - (x * c - y * s)) / size,
                              std::abs(at(after, row, head, i + d / 2) - (y * c + x * s)) / size});
              }
            }
          }
          // One rounding of cosine and sine each, two products and a sum; then that of the row.
          EXPECT_LE(worst, type == DType::f32   ? 4e-7
                           : type == DType::f16 ? 6e-4
                                                : 4.5e-3)
              << rows << " rows, d " << d;
        });
      }
    }
  }
  const ThreadPool pool(1);
  Tensor keys = Tensor::zeros(DType::f32, {2, 1, 4});
  const std::vector<std::array<int32_t, 3>> one(1);
  expect_error("rerotate: one difference for each row", [&] {
    rerotate(Context(pool), std::vector<double>(2), std::vector<int32_t>(2), one, keys);
  });
}

}  // namespace
}  // namespace kinora
