#include <gtest/gtest.h>

#include "ops/layer_norm.h"
#include "ops/op_test_support.h"
#include "ops/rms_norm.h"

namespace kinora {
namespace {

using namespace testing;

std::vector<double> rms_reference(const std::vector<double>& x, const std::vector<double>& weight,
                                  double epsilon) {
  std::vector<double> out(x.size());
  const size_t d = weight.size();
  for (size_t row = 0; row < x.size(); row += d) {
    double squares = 0;
    for (size_t i = 0; i < d; ++i) squares += x[row + i] * x[row + i];
    const double factor = 1 / std::sqrt(squares / static_cast<double>(d) + epsilon);
    for (size_t i = 0; i < d; ++i) out[row + i] = x[row + i] * factor * weight[i];
  }
  return out;
}

// Of a row: its mean, and what x − mean is multiplied by.
struct RowNorm {
  double mean, factor;
};
RowNorm row_norm(const double* x, size_t d, double epsilon) {
  double sum = 0, squares = 0;
  for (size_t i = 0; i < d; ++i) sum += x[i];
  const double mean = sum / static_cast<double>(d);
  for (size_t i = 0; i < d; ++i) squares += (x[i] - mean) * (x[i] - mean);
  return {mean, 1 / std::sqrt(squares / static_cast<double>(d) + epsilon)};
}

std::vector<double> layer_reference(const std::vector<double>& x, const std::vector<double>& weight,
                                    const std::vector<double>& bias, double epsilon) {
  std::vector<double> out(x.size());
  const size_t d = weight.size();
  for (size_t row = 0; row < x.size(); row += d) {
    const auto [mean, factor] = row_norm(x.data() + row, d, epsilon);
    for (size_t i = 0; i < d; ++i) {
      out[row + i] = (x[row + i] - mean) * factor * weight[i] + bias[i];
    }
  }
  return out;
}

// What f32 may be off by. The rounding of x − mean is relative to the largest x, and where a row's
// values are close to each other the factor makes it large.
std::vector<double> layer_bounds(const std::vector<double>& x, const std::vector<double>& weight,
                                 const std::vector<double>& bias, double epsilon) {
  constexpr double roundings = 16 * 0x1p-24;
  std::vector<double> bounds(x.size());
  const size_t d = weight.size();
  for (size_t row = 0; row < x.size(); row += d) {
    const auto [mean, factor] = row_norm(x.data() + row, d, epsilon);
    double largest = 0;
    for (size_t i = 0; i < d; ++i) largest = std::max(largest, std::abs(x[row + i]));
    for (size_t i = 0; i < d; ++i) {
      const double normed = std::abs(x[row + i] - mean) * factor;
      bounds[row + i] = roundings * (std::abs(weight[i]) * (1 + normed) * (1 + largest * factor) +
                                     std::abs(bias[i]));
    }
  }
  return bounds;
}

const std::vector<Shape> shapes{{1, 1},
                                {1, 3},
                                {7, 63},
                                {65, 129},
                                {3, 5, 64},
                                {2, 3, 127},
                                {3, 4097},
                                // A GPU gives many rows to warps.
                                {257, 64},
                                {129, 2, 512},
                                {263, 1284},
                                {259, 2048},
                                {300, 65}};

TEST(RmsNorm, EqualsTheReferenceForRowsAndHeads) {
  KINORA_FRESH_RANDOM(random);
  for (const DType type : float_types) {
    for (const Shape& shape : shapes) {
      for (const int64_t between : {3, 4}) {  // rows: with 4, a GPU reads four elements at a time
        SCOPED_TRACE(to_string(shape) + ", " + std::to_string(between) + " between rows");
        auto x = TestTensor::random(random, DType::f32, shape, between, 2.0);
        auto weight = TestTensor::random(random, type, {shape[shape.rank() - 1]});
        const auto expected = rms_reference(x.values(), weight.values(), 1e-6);
        for_each_context([&](const Context& context) {
          auto out = TestTensor::poisoned(DType::f32, shape, 4 - between);
          rms_norm(context, x.on(context), weight.on(context), 1e-6f, out.on(context));
          expect_close(out, expected, 5e-7);
          auto in_place = x.copy();
          rms_norm(context, in_place.on(context), weight.on(context), 1e-6f, in_place.on(context));
          expect_close(in_place, expected, 5e-7);
        });
      }
    }
  }
}

TEST(LayerNorm, EqualsTheReference) {
  KINORA_FRESH_RANDOM(random);
  for (const DType type : float_types) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(to_string(shape));
      auto x = TestTensor::random(random, DType::f32, shape, 3, 2.0);
      auto weight = TestTensor::random(random, type, {shape[shape.rank() - 1]});
      auto bias = TestTensor::random(random, type, {shape[shape.rank() - 1]});
      const auto expected = layer_reference(x.values(), weight.values(), bias.values(), 1e-6);
      const auto bounds = layer_bounds(x.values(), weight.values(), bias.values(), 1e-6);
      for_each_context([&](const Context& context) {
        auto out = TestTensor::poisoned(DType::f32, shape, 1);
        layer_norm(context, x.on(context), weight.on(context), bias.on(context), 1e-6f,
                   out.on(context));
        expect_within(out, expected, bounds);
        // In long rows nothing cancels.
        if (shape[shape.rank() - 1] >= 63) expect_close(out, expected, 1e-6);
      });
    }
  }
}

// A row far from zero whose spread is small: summing squares of the values themselves would lose
// it.
TEST(LayerNorm, KeepsASmallSpreadAroundALargeMean) {
  KINORA_FRESH_RANDOM(random);
  std::vector<float> values = random_floats(random, 129);
  for (float& value : values) value = value + 1000.0f;
  auto x = TestTensor::of(values, {1, 129});
  auto weight = TestTensor::of(std::vector<float>(129, 1.0f), {129});
  auto bias = TestTensor::of(std::vector<float>(129, 0.0f), {129});
  const auto expected = layer_reference(x.values(), weight.values(), bias.values(), 1e-6);
  for_each_context([&](const Context& context) {
    auto out = TestTensor::poisoned(DType::f32, {1, 129});
    layer_norm(context, x.on(context), weight.on(context), bias.on(context), 1e-6f,
               out.on(context));
    expect_close(out, expected, 2e-4);
  });
}

TEST(Norm, RefusesWhatDoesNotFit) {
  const ThreadPool pool(1);
  const Context context(pool);
  Tensor x(DType::f32, {2, 3}), weight(DType::f32, {3}), wrong(DType::f32, {2}),
      bytes(DType::u8, {3});
  expect_error("rms_norm: weight has shape [2], expected [3]",
               [&] { rms_norm(context, x, wrong, 1e-6f, x); });
  expect_error("rms_norm: weight must be f32, bf16 or f16",
               [&] { rms_norm(context, x, bytes, 1e-6f, x); });
  expect_error("layer_norm: bias has shape [2]",
               [&] { layer_norm(context, x, weight, wrong, 1e-6f, x); });
}

}  // namespace
}  // namespace kinora
