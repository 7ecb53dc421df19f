// What the tests of ops share: tensors with random or poisoned contents and padded rows, and a loop
// over the devices that have the op.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/context.h"
#include "base/error.h"
#include "base/tensor.h"
#include "support/compare.h"
#include "support/exact.h"
#include "support/random_data.h"

namespace kinora::testing {

// Runs body on the CPU with one and with three threads, and on every CUDA device.
inline void for_each_context(const std::function<void(const Context&)>& body) {
  const ThreadPool one(1), three(3);
  for (const ThreadPool* pool : {&one, &three}) {
    SCOPED_TRACE("cpu, threads: " + std::to_string(pool->threads()));
    body(Context(*pool));
  }
  for (size_t i = 0; i < cuda_devices().size(); ++i) {
    const Device device = Device::cuda(static_cast<int>(i));
    SCOPED_TRACE(to_string(device));
    body(Context(three, device));
  }
}

inline float as_float(DType type, const std::byte* at) {
  switch (type) {
    case DType::bf16:
      return reinterpret_cast<const bf16*>(at)->to_float();
    case DType::f16:
      return reinterpret_cast<const f16*>(at)->to_float();
    default:
      return *reinterpret_cast<const float*>(at);
  }
}

inline void put_float(DType type, float value, std::byte* at) {
  switch (type) {
    case DType::bf16:
      *reinterpret_cast<bf16*>(at) = bf16::from_float(value);
      return;
    case DType::f16:
      *reinterpret_cast<f16*>(at) = f16::from_float(value);
      return;
    default:
      *reinterpret_cast<float*>(at) = value;
  }
}

// A floating-point tensor whose rows are followed by `padding` elements of NaN, so that an op that
// reads past a row gives NaN, and one that writes past it is seen.
class TestTensor {
 public:
  static TestTensor poisoned(DType type, const Shape& shape, int64_t padding = 0) {
    return TestTensor(type, shape, padding);
  }
  // Normal values times `scale`, rounded to the type.
  static TestTensor random(Random& random, DType type, const Shape& shape, int64_t padding = 0,
                           double scale = 1.0) {
    return of(random_floats(random, shape.elements(), scale), shape, type, padding);
  }
  static TestTensor of(const std::vector<float>& values, const Shape& shape,
                       DType type = DType::f32, int64_t padding = 0) {
    TestTensor tensor(type, shape, padding);
    if (static_cast<int64_t>(values.size()) < shape.elements()) {
      throw std::out_of_range("fewer values than the tensor has");
    }
    const float* value = values.data();
    tensor.each_row([&](std::byte* row) {
      for (int64_t i = 0; i < tensor.width_; ++i) put_float(type, *value++, row + i * tensor.size_);
    });
    return tensor;
  }

  // The tensor, moved to the device; keeps what it holds.
  TensorView on(const Context& context) {
    storage_ = storage_.to(context.device);
    return storage_.view().columns(0, width_);
  }
  TensorView view() { return storage_.view().columns(0, width_); }
  TestTensor copy() const {
    TestTensor other = *this;
    other.storage_ = storage_.clone();
    return other;
  }

  std::vector<double> values() {
    storage_ = storage_.to(Device::cpu());
    const DType type = storage_.dtype();
    std::vector<double> result;
    result.reserve(static_cast<size_t>(storage_.elements()));
    each_row([&](std::byte* row) {
      for (int64_t i = 0; i < width_; ++i) result.push_back(as_float(type, row + i * size_));
    });
    return result;
  }
  bool padding_is_untouched() {
    storage_ = storage_.to(Device::cpu());
    const DType type = storage_.dtype();
    bool untouched = true;
    each_row([&](std::byte* row) {
      for (int64_t i = width_; i < row_; ++i) {
        untouched &= std::isnan(as_float(type, row + i * size_));
      }
    });
    return untouched;
  }

 private:
  TestTensor(DType type, const Shape& shape, int64_t padding)
      : width_(shape[shape.rank() - 1]), row_(width_ + padding), size_(dtype_size(type)) {
    Shape padded;
    for (int axis = 0; axis + 1 < shape.rank(); ++axis) padded.append(shape[axis]);
    padded.append(row_);
    storage_ = Tensor(type, padded);
    each_row([&](std::byte* row) {
      for (int64_t i = 0; i < row_; ++i) put_float(type, std::nanf(""), row + i * size_);
    });
  }

  // Calls body with the first byte of every row, in order. The tensor is on the CPU.
  template <class Body>
  void each_row(const Body& body) {
    const int64_t all = storage_.elements();
    for (int64_t first = 0; first < all; first += row_) {
      body(storage_.view().raw() + first * size_);
    }
  }

  int64_t width_ = 0;
  int64_t row_ = 0;
  int64_t size_ = 0;  // of an element
  Tensor storage_;
};

constexpr DType float_types[] = {DType::f32, DType::bf16, DType::f16};

// The values agree within `tolerance` of the norm of all, and the padding was left alone.
inline void expect_close(TestTensor& actual, const std::vector<double>& expected,
                         double tolerance) {
  const std::vector<double> values = actual.values();
  EXPECT_LE(relative_error(std::span<const double>(values), std::span<const double>(expected)),
            tolerance);
  EXPECT_TRUE(actual.padding_is_untouched());
}

// Each value agrees within its own bound, which the test derives from the computation: a sum that
// nearly cancels has no small error relative to itself. The padding was left alone.
inline void expect_within(TestTensor& actual, const std::vector<double>& expected,
                          const std::vector<double>& bounds) {
  const std::vector<double> values = actual.values();
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_LE(std::abs(values[i] - expected[i]), bounds[i]) << "element " << i;
  }
  EXPECT_TRUE(actual.padding_is_untouched());
}

// body throws an Error whose message has `part` in it.
inline void expect_error(const std::string& part, const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "no error; expected one with: " << part;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

}  // namespace kinora::testing
