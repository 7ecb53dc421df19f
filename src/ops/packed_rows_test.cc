#include "ops/packed_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ops/elementwise.h"
#include "ops/op_test_support.h"
#include "ops/packed_matrix.h"
#include "ops/rope.h"

namespace kinora {
namespace {

constexpr DType both[] = {DType::i8, DType::u8};

Tensor packed_of(const Context& context, ConstTensorView x, DType type) {
  Tensor rows(type, {x.size(0), x.size(1), stored_columns(type, x.size(2))});
  store_rows(context, x, rows);
  return rows;
}

// What columns that share a scale may lose: half a step of int8, which is 1/127 of their largest
// element, or of FP8, which is 1/8 of the power of two below an element, and 2^-9 of the scale for
// the smallest.
double allowed(DType type, double value, double largest) {
  constexpr double slack = 1 + 0x1p-8;  // the scale is the nearest bf16
  if (type == DType::i8) return 0.5 * largest / 127 * slack;
  const double scale = largest / 448;
  const double power = std::exp2(std::floor(std::log2(std::abs(value) / scale * slack)));
  return 0.5 * scale * std::max(power / 8, 0x1p-9) * slack;
}

TEST(PackedRows, LoseHalfAStep) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(3);
  const Context context(pool);
  for (const DType type : both) {
    for (const int64_t size : {1, 3, 16, 19, 63, 64, 65, 127, 128, 129}) {
      const Shape shape{7, 3, size};
      std::vector<float> x = testing::random_floats(random, shape.elements());
      for (int64_t head = 0; head < 21; ++head) {  // heads of very different sizes
        const auto factor = static_cast<float>(std::pow(10.0, random.uniform(-20.0, 20.0)));
        for (int64_t i = 0; i < size; ++i) x[static_cast<size_t>(head * size + i)] *= factor;
      }
      const Tensor rows = packed_of(context, ConstTensorView::of(x.data(), shape), type);
      EXPECT_EQ(rows.bytes(), 21 * (size + 2 * ((size + 31) / 32)));
      EXPECT_EQ(head_size_of(rows), size);
      std::vector<float> wide(x.size(), NAN);
      widen_rows(context, rows, TensorView::of(wide.data(), shape));
      for (size_t i = 0; i < x.size(); ++i) {
        const auto head = static_cast<int64_t>(i) / size * size;
        const int64_t first = head + (static_cast<int64_t>(i) - head) / 32 * 32;
        double largest = 0;
        for (int64_t k = first; k < std::min(head + size, first + 32); ++k) {
          largest = std::max(largest, std::abs(double{x[static_cast<size_t>(k)]}));
        }
        ASSERT_NEAR(wide[i], x[i], allowed(type, double{x[i]}, largest))
            << row_type_name(type) << " of size " << size << ", element " << i;
      }
    }
  }
}

// What was rounded once is not rounded again.
TEST(PackedRows, ComeBackAsTheyWere) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Context context(pool);
  const Shape shape{200, 2, 65};
  std::vector<float> x = testing::random_floats(random, shape.elements());
  for (const DType type : both) {
    const Tensor once = packed_of(context, ConstTensorView::of(x.data(), shape), type);
    widen_rows(context, once, TensorView::of(x.data(), shape));
    const Tensor twice = packed_of(context, ConstTensorView::of(x.data(), shape), type);
    EXPECT_EQ(std::memcmp(once.view().raw(), twice.view().raw(), static_cast<size_t>(once.bytes())),
              0);
  }
}

TEST(PackedRows, TakeTheNearestCode) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Context context(pool);
  // The largest of 32 columns is the largest code, so that their scale is 1.
  std::vector<float> x = testing::random_floats(random, 2048);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = std::clamp(x[i] * std::exp2(static_cast<float>(random.uniform(-12.0, 8.0))), -448.0f,
                      448.0f);
  }
  for (size_t i = 5; i < x.size(); i += 32) x[i] = i % 64 == 5 ? 448 : -448;
  x[6] = 1.0625f;  // half-way: to the even one
  x[7] = -1.1875f;
  x[8] = 0x1p-10f;
  const Shape shape{1, 1, 2048};
  const Tensor rows = packed_of(context, ConstTensorView::of(x.data(), shape), DType::u8);
  const auto* codes = rows.data<uint8_t>();
  EXPECT_EQ(codes[5], 0x7e);
  EXPECT_EQ(codes[6], 0x38);
  EXPECT_EQ(codes[7], 0xba);
  EXPECT_EQ(codes[8], 0x00);
  for (size_t i = 0; i < x.size(); ++i) {
    double nearest = std::numeric_limits<double>::infinity();
    for (int code = 0; code < 256; ++code) {
      const double other = double{e4m3_value(static_cast<uint8_t>(code))};
      if (!std::isnan(other)) nearest = std::min(nearest, std::abs(other - double{x[i]}));
    }
    ASSERT_EQ(std::abs(double{e4m3_value(codes[i])} - double{x[i]}), nearest) << x[i];
  }
}

TEST(PackedRows, EveryCodeIsReadExactly) {
  const ThreadPool pool(1);
  const Context context(pool);
  for (const DType type : both) {
    Tensor rows(type, {1, 1, stored_columns(type, 256)});
    auto* codes = reinterpret_cast<uint8_t*>(rows.view().raw());
    for (int i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
    codes[0x7f] = codes[0xff] = 0;  // of e4m3 these are no numbers
    for (int group = 0; group < 8; ++group) {
      const bf16 scale = bf16::from_float(std::exp2(static_cast<float>(group)));
      std::memcpy(codes + 256 + 2 * group, &scale.bits, sizeof(scale.bits));
    }
    std::vector<float> wide(256);
    widen_rows(context, rows, TensorView::of(wide.data(), {1, 1, 256}));
    for (size_t i = 0; i < 256; ++i) {
      const float code = type == DType::i8 ? std::bit_cast<int8_t>(codes[i]) : e4m3_value(codes[i]);
      ASSERT_EQ(wide[i], std::ldexp(code, static_cast<int>(i / 32))) << i;
    }
  }
}

TEST(PackedRows, HeadsThatAreNoNumbersZeroOrTiny) {
  const ThreadPool pool(1);
  const Context context(pool);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const DType type : both) {
    for (const int64_t size : {5, 16, 31}) {
      const Shape shape{5, 1, size};
      std::vector<float> x(static_cast<size_t>(shape.elements()), 1.0f);
      const auto head = [&](int64_t row) { return x.begin() + row * size; };
      *(head(0) + size - 1) = NAN;
      *(head(1) + 2) = -infinity;
      std::fill_n(head(2), size, 0.0f);
      std::fill_n(head(3), size, std::numeric_limits<float>::denorm_min());
      const Tensor rows = packed_of(context, ConstTensorView::of(x.data(), shape), type);
      std::vector<float> wide(x.size());
      widen_rows(context, rows, TensorView::of(wide.data(), shape));
      for (int64_t i = 0; i < size; ++i) {
        const auto at = [&](int64_t row) { return wide[static_cast<size_t>(row * size + i)]; };
        EXPECT_TRUE(std::isnan(at(0)));
        EXPECT_TRUE(std::isnan(at(1)));
        EXPECT_EQ(at(2), 0.0f);
        EXPECT_LE(std::abs(at(3)), 448 * std::numeric_limits<float>::min());
        EXPECT_NEAR(at(4), 1.0f, allowed(type, 1, 1));
      }
    }
  }
}

// Strided rows on both sides, as one head among others is.
TEST(PackedRows, StridesOfBothSidesAreKept) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  constexpr int64_t count = 9, heads = 3, size = 21;
  const auto x = testing::random_floats(random, count * heads * size);
  for (const DType type : both) {
    const Tensor all =
        packed_of(context, ConstTensorView::of(x.data(), {count, heads, size}), type);
    const ConstTensorView view = all;
    const ConstTensorView second(view.raw() + view.stride(1), type, {count, 1, view.size(2)},
                                 {view.stride(0), view.stride(1), 1}, Device::cpu());
    Tensor room;
    const ConstTensorView plain = plain_rows(context, second, room);
    Tensor whole(DType::f32, {count, heads, size});
    widen_rows(context, all, whole);
    for (int64_t row = 0; row < count; ++row) {
      const float* expected = whole.view().row<float>(row) + size;
      EXPECT_TRUE(std::equal(expected, expected + size, plain.row<float>(row)));
    }
    const ConstTensorView floats = whole;
    EXPECT_EQ(plain_rows(context, floats, room).raw(), floats.raw());
  }
}

// A projection goes into rows of 8 bits as if they had been f32 and were rounded then, and rows
// that move are rounded again.
TEST(PackedRows, TakeWhatRopeGives) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  constexpr int64_t count = 11, heads = 4, kv_heads = 2, d = 38;
  const auto qkv = testing::random_floats(random, count * (heads + 2 * kv_heads) * d);
  const auto frequencies = rope_inverse_frequencies(d, 10000);
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < count; ++i) positions.push_back(i * 17);
  const RopeTable table = rope_table(context, frequencies, positions);
  const auto view = ConstTensorView::of(qkv.data(), {count, (heads + 2 * kv_heads) * d});
  Tensor queries(DType::f32, {count, heads, d});
  Tensor keys(DType::f32, {count, kv_heads, d}), values(DType::f32, {count, kv_heads, d});
  rope_split(context, table, view, queries, keys, values);
  for (const DType type : both) {
    const Shape stored{count, kv_heads, stored_columns(type, d)};
    Tensor narrow_keys(type, stored), narrow_values(type, stored);
    rope_split(context, table, view, queries, narrow_keys, narrow_values);
    const auto same = [](const Tensor& a, const Tensor& b) {
      return std::memcmp(a.view().raw(), b.view().raw(), static_cast<size_t>(a.bytes())) == 0;
    };
    EXPECT_TRUE(same(narrow_keys, packed_of(context, keys, type)));
    EXPECT_TRUE(same(narrow_values, packed_of(context, values, type)));

    const std::vector<int32_t> axes(frequencies.size(), 0);
    const std::vector<std::array<int32_t, 3>> moves(count, {5, 0, 0});
    Tensor moved(DType::f32, keys.shape());
    widen_rows(context, narrow_keys, moved);
    rerotate(context, frequencies, axes, moves, moved);
    rerotate(context, frequencies, axes, moves, narrow_keys);
    EXPECT_TRUE(same(narrow_keys, packed_of(context, moved, type)));
  }
}

class PackedRowsOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (cuda_devices(&why).empty()) GTEST_SKIP() << why;
  }
  static std::vector<uint8_t> bytes_of(const Tensor& tensor) {
    const Tensor here = tensor.to(Device::cpu());
    const auto* raw = reinterpret_cast<const uint8_t*>(here.view().raw());
    return {raw, raw + here.bytes()};
  }
  const ThreadPool pool_{3};
  const Context host_{pool_};
  const Context gpu_{pool_, Device::cuda()};
};

// The same bytes as on the CPU, from f32 and from bf16, for heads of very different sizes, and the
// same floats back.
TEST_F(PackedRowsOnGpu, AreThoseOfTheCpu) {
  KINORA_FRESH_RANDOM(random);
  for (const DType type : both) {
    for (const int64_t size : {1, 3, 31, 32, 33, 37, 63, 64, 65, 80, 127, 128, 129, 256}) {
      SCOPED_TRACE(std::string(row_type_name(type)) + " of size " + std::to_string(size));
      constexpr int64_t count = 65, heads = 3;
      Tensor x(DType::f32, {count, heads, size});
      const std::vector<float> normal = testing::random_floats(random, x.elements());
      for (int64_t i = 0; i < x.elements(); ++i) {
        const double power = i / size % 5 == 0 ? random.uniform(-44.0, 37.0) : 0;
        x.data<float>()[i] = normal[static_cast<size_t>(i)] *
                             static_cast<float>(std::pow(10.0, power)) *
                             (random.below(9) == 0 ? -0.0f : 1.0f);
      }
      Tensor narrow(DType::bf16, x.shape()), rounded(DType::f32, x.shape());
      convert(host_, x, narrow);
      convert(host_, narrow, rounded);
      const Tensor packed = packed_of(host_, x, type);
      const Shape stored = packed.shape();
      Tensor there(type, stored, gpu_.device), from_narrow(type, stored, gpu_.device);
      store_rows(gpu_, x.to(gpu_.device), there);
      store_rows(gpu_, narrow.to(gpu_.device), from_narrow);
      EXPECT_EQ(bytes_of(there), bytes_of(packed));
      EXPECT_EQ(bytes_of(from_narrow), bytes_of(packed_of(host_, rounded, type)));

      Tensor wide(DType::f32, x.shape()), wide_narrow(DType::bf16, x.shape());
      widen_rows(host_, packed, wide);
      convert(host_, wide, wide_narrow);
      Tensor room;
      plain_rows(gpu_, there, room);
      EXPECT_EQ(bytes_of(room), bytes_of(wide));
      plain_rows(gpu_, there, room, DType::bf16);
      EXPECT_EQ(bytes_of(room), bytes_of(wide_narrow));
    }
  }
}

TEST_F(PackedRowsOnGpu, AreNoNumbersWhereOneIsNot) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const DType type : both) {
    Tensor x = Tensor::zeros(DType::f32, {4, 1, 70});
    for (int64_t i = 0; i < x.elements(); ++i) x.data<float>()[i] = 1;
    x.data<float>()[5] = NAN;
    x.data<float>()[70 + 69] = -infinity;
    std::fill_n(x.data<float>() + 140, 70, std::numeric_limits<float>::denorm_min());
    Tensor there(type, {4, 1, stored_columns(type, 70)}, gpu_.device), room;
    store_rows(gpu_, x.to(gpu_.device), there);
    plain_rows(gpu_, there, room);
    const Tensor wide = room.to(Device::cpu());
    for (int64_t i = 0; i < 70; ++i) {
      const auto at = [&](int64_t row) { return wide.data<float>()[row * 70 + i]; };
      EXPECT_EQ(std::isnan(at(0)), i < 32);
      EXPECT_EQ(std::isnan(at(1)), i >= 64);
      EXPECT_LE(std::abs(at(2)), 448 * std::numeric_limits<float>::min());
      EXPECT_NEAR(at(3), 1.0f, allowed(type, 1, 1));
    }
  }
}

TEST_F(PackedRowsOnGpu, KeepStridesAndNeighbours) {
  KINORA_FRESH_RANDOM(random);
  constexpr int64_t count = 9, heads = 3, size = 21;
  const auto x = testing::random_floats(random, count * heads * size);
  testing::TestTensor numbers = testing::TestTensor::of(x, {count, heads, size});
  const TensorView given = numbers.on(gpu_);
  for (const DType type : both) {
    const Tensor all = packed_of(host_, ConstTensorView::of(x.data(), {count, heads, size}), type);
    // The second head alone, from among the numbers of all to among the codes of all.
    Tensor there = Tensor::zeros(type, all.shape(), gpu_.device);
    const auto second = [&](auto view, int64_t columns) {
      return decltype(view)(view.raw() + view.stride(1) * dtype_size(view.dtype()), view.dtype(),
                            {count, 1, columns}, {view.stride(0), view.stride(1), 1},
                            view.device());
    };
    store_rows(gpu_, second(given, size), second(there.view(), all.size(2)));
    const std::vector<uint8_t> bytes = bytes_of(there), expected = bytes_of(all);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const bool mine = static_cast<int64_t>(i) / all.size(2) % heads == 1;
      ASSERT_EQ(bytes[i], mine ? expected[i] : 0) << i;
    }
    Tensor room, whole;
    plain_rows(gpu_, second(ConstTensorView(there), all.size(2)), room);
    plain_rows(host_, all, whole);
    const Tensor back = room.to(Device::cpu());
    for (int64_t row = 0; row < count; ++row) {
      const float* wanted = whole.view().row<float>(row) + size;
      EXPECT_TRUE(std::equal(wanted, wanted + size, back.view().row<float>(row)));
    }
  }
}

TEST_F(PackedRowsOnGpu, TakeWhatRopeGives) {
  KINORA_FRESH_RANDOM(random);
  constexpr int64_t count = 11, heads = 4, kv_heads = 2, d = 38;
  const auto numbers = testing::random_floats(random, count * (heads + 2 * kv_heads) * d);
  const auto frequencies = rope_inverse_frequencies(d, 10000);
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < count; ++i) positions.push_back(i * 17);
  const RopeTable table = rope_table(gpu_, frequencies, positions);
  for (const DType activations : {DType::f32, DType::bf16}) {
    testing::TestTensor qkv =
        testing::TestTensor::of(numbers, {count, (heads + 2 * kv_heads) * d}, activations);
    const TensorView view = qkv.on(gpu_);
    Tensor queries(activations, {count, heads, d}, gpu_.device);
    Tensor keys(DType::f32, {count, kv_heads, d}, gpu_.device);
    Tensor values(DType::f32, {count, kv_heads, d}, gpu_.device);
    rope_split(gpu_, table, view, queries, keys, values);
    const std::vector<uint8_t> turned = bytes_of(queries);
    for (const DType type : both) {
      const Shape stored{count, kv_heads, stored_columns(type, d)};
      Tensor narrow_keys(type, stored, gpu_.device), narrow_values(type, stored, gpu_.device);
      rope_split(gpu_, table, view, queries, narrow_keys, narrow_values);
      EXPECT_EQ(bytes_of(queries), turned);
      EXPECT_EQ(bytes_of(narrow_keys), bytes_of(packed_of(host_, keys.to(Device::cpu()), type)));
      EXPECT_EQ(bytes_of(narrow_values),
                bytes_of(packed_of(host_, values.to(Device::cpu()), type)));

      const std::vector<int32_t> axes(frequencies.size(), 0);
      const std::vector<std::array<int32_t, 3>> moves(count, {5, 0, 0});
      Tensor moved(DType::f32, keys.shape(), gpu_.device);
      widen_rows(gpu_, narrow_keys, moved);
      rerotate(gpu_, frequencies, axes, moves, moved);
      rerotate(gpu_, frequencies, axes, moves, narrow_keys);
      EXPECT_EQ(bytes_of(narrow_keys), bytes_of(packed_of(host_, moved.to(Device::cpu()), type)));
    }
  }
}

TEST(PackedRows, RefuseWhatDoesNotFit) {
  const ThreadPool pool(1);
  const Context context(pool);
  Tensor x = Tensor::zeros(DType::f32, {2, 2, 8}), rows = Tensor::zeros(DType::i8, {2, 2, 8});
  EXPECT_THROW(store_rows(context, x, rows), Error);
  EXPECT_THROW(widen_rows(context, rows, x), Error);
  Tensor narrow = Tensor::zeros(DType::bf16, {2, 2, 8}), right(DType::i8, {2, 2, 10});
  EXPECT_THROW(store_rows(context, narrow, right), Error);
}

}  // namespace
}  // namespace kinora
