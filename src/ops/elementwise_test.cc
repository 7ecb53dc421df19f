#include "ops/elementwise.h"

#include <gtest/gtest.h>

#include <cstring>

#include "ops/op_test_support.h"

namespace kinora {
namespace {

using namespace testing;

const std::vector<Shape> shapes{{1}, {63}, {40001}, {3, 65}, {129, 127}, {2, 3, 33}, {4, 0}};

TEST(Elementwise, AddsAndScales) {
  KINORA_FRESH_RANDOM(random);
  for (const Shape& shape : shapes) {
    for (const int64_t padding : {0, 5}) {
      auto a = TestTensor::random(random, DType::f32, shape, padding);
      auto b = TestTensor::random(random, DType::f32, shape, 2 * padding);
      const auto x = a.values(), y = b.values();
      std::vector<double> sum(x.size()), scaled(x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        sum[i] = static_cast<float>(x[i] + y[i]);
        scaled[i] = static_cast<float>(x[i] * -0.375);
      }
      for_each_context([&](const Context& context) {
        auto out = TestTensor::poisoned(DType::f32, shape, padding);
        add(context, a.on(context), b.on(context), out.on(context));
        expect_close(out, sum, 0);
        auto in_place = a.copy();
        add(context, in_place.on(context), b.on(context), in_place.on(context));
        expect_close(in_place, sum, 0);
        scale(context, a.on(context), -0.375f, out.on(context));
        expect_close(out, scaled, 0);
      });
    }
  }
}

TEST(Elementwise, AddsABiasToEveryRow) {
  KINORA_FRESH_RANDOM(random);
  for (const DType type : float_types) {
    for (const Shape& shape : {Shape{7, 65}, Shape{2, 3, 127}, Shape{5}}) {
      const auto before = TestTensor::random(random, DType::f32, shape, 3);
      auto bias = TestTensor::random(random, type, {shape[shape.rank() - 1]});
      const auto b = bias.values();
      std::vector<double> expected = before.copy().values();
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += b[i % b.size()];
      for_each_context([&](const Context& context) {
        auto x = before.copy();
        add_bias(context, bias.on(context), x.on(context));
        expect_close(x, expected, 1e-7);
      });
    }
  }
}

TEST(Convert, RoundsToNearestEvenBetweenAllTypes) {
  KINORA_FRESH_RANDOM(random);
  for (const DType from : float_types) {
    for (const DType to : float_types) {
      for (const Shape& shape : {Shape{1}, Shape{65, 129}, Shape{20011}}) {
        auto x = TestTensor::random(random, from, shape, 1, 50.0);
        std::vector<double> expected = x.values();
        for (double& value : expected) {
          std::byte stored[4];
          put_float(to, static_cast<float>(value), stored);
          value = as_float(to, stored);
        }
        for_each_context([&](const Context& context) {
          auto out = TestTensor::poisoned(to, shape, 2);
          convert(context, x.on(context), out.on(context));
          expect_close(out, expected, 0);
        });
      }
    }
  }
}

// Every 16-bit pattern goes to f32 and back unchanged (NaN: stays NaN).
TEST(Convert, RoundTripsEveryBf16AndF16) {
  for (const DType type : {DType::bf16, DType::f16}) {
    Tensor narrow(type, {65536});
    auto* bits = reinterpret_cast<uint16_t*>(narrow.view().raw());
    for (int i = 0; i < 65536; ++i) bits[i] = static_cast<uint16_t>(i);
    for_each_context([&](const Context& context) {
      const Tensor there = narrow.to(context.device);
      Tensor wide(DType::f32, {65536}, context.device), back(type, {65536}, context.device);
      convert(context, there, wide);
      convert(context, wide, back);
      const Tensor host = back.to(Device::cpu());
      const auto* result = reinterpret_cast<const uint16_t*>(host.view().raw());
      for (int i = 0; i < 65536; ++i) {
        const float value = as_float(type, narrow.view().raw() + 2 * i);
        if (std::isnan(value)) {
          ASSERT_TRUE(std::isnan(as_float(type, host.view().raw() + 2 * i))) << i;
        } else {
          ASSERT_EQ(result[i], bits[i]);
        }
      }
    });
  }
}

TEST(Elementwise, RefusesWhatDoesNotFit) {
  const ThreadPool pool(1);
  const Context context(pool);
  Tensor x(DType::f32, {2, 3}), other(DType::f32, {3, 2}), bytes(DType::u8, {2, 3});
  expect_error("add: b has shape [3, 2], expected [2, 3]", [&] { add(context, x, other, x); });
  expect_error("add_bias: bias has shape", [&] { add_bias(context, x, x); });
  expect_error("convert: x must be f32, bf16 or f16", [&] { convert(context, bytes, x); });
  expect_error("scale: out has shape", [&] { scale(context, x, 2, other); });
}

TEST(Ops, SayWhichTensorIsElsewhere) {
  const ThreadPool pool(1);
  Tensor x(DType::f32, {2, 3});
  expect_error("add: a is on cpu, but the op runs on cuda:0", [&] { add(Context(pool, Device::cuda()), x, x, x); });
}

}  // namespace
}  // namespace kinora
