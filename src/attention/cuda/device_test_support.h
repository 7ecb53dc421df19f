// Attention problems on any device, for tests: tensors are copied there, the output is poisoned
// first, results come back as floats.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "attention/runner.h"
#include "attention/test_support.h"

namespace kinora::testing {

// The CPU and every CUDA device that keeps rows of this type.
inline std::vector<Device> all_devices(DType rows = DType::f32) {
  std::vector<Device> devices{Device::cpu()};
  if (rows == DType::f16) return devices;
  for (size_t i = 0; i < cuda_devices().size(); ++i) {
    devices.push_back(Device::cuda(static_cast<int>(i)));
  }
  return devices;
}

inline Tensor tensor_of(const std::vector<float>& values, const Shape& shape, DType type,
                        Device device) {
  if (rows_are_packed(type)) {
    std::vector<float> stored = values;
    return packed_rows(stored, shape, type).to(device);
  }
  Tensor tensor(type, shape);
  if (type == DType::f32) {
    std::copy(values.begin(), values.end(), tensor.data<float>());
  } else if (type == DType::f16) {
    std::transform(values.begin(), values.end(), tensor.data<f16>(), f16::from_float);
  } else {
    std::transform(values.begin(), values.end(), tensor.data<bf16>(), bf16::from_float);
  }
  return tensor.to(device);
}

inline std::vector<float> floats_of(const Tensor& tensor) {
  const Tensor here = tensor.to(Device::cpu());
  std::vector<float> values(static_cast<size_t>(here.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] =
        here.dtype() == DType::f32 ? here.data<float>()[i] : here.data<bf16>()[i].to_float();
  }
  return values;
}

inline Tensor poisoned_tensor(const Shape& shape, DType type, Device device) {
  const std::vector<float> nothing(static_cast<size_t>(shape.elements()),
                                   std::numeric_limits<float>::quiet_NaN());
  return tensor_of(nothing, shape, type, device);
}

// The problem with the numbers that a device's plans read: a GPU widens rows of 8 bits to bf16.
inline Problem read_on(Device device, const Problem& problem) {
  Problem read = problem;
  if (device.is_cpu() || !rows_are_packed(problem.shape.dtype)) return read;
  for (std::vector<float>* rows : {&read.key_data, &read.value_data}) {
    for (float& value : *rows) value = bf16::from_float(value).to_float();
  }
  return read;
}

// A problem whose tensors lie on a device. Rows have the problem's type.
class PlacedProblem {
 public:
  PlacedProblem(const Problem& problem, Device device, DType query_type = DType::f32,
                DType out_type = DType::f32)
      : problem_(problem), device_(device) {
    const ProblemShape& shape = problem.shape;
    const Shape rows{problem.rows(), shape.kv_heads, shape.head_size};
    queries_ = tensor_of(problem.query_data, problem.out_shape(), query_type, device);
    keys_ = tensor_of(problem.key_data, rows, shape.dtype, device);
    values_ = tensor_of(problem.value_data, rows, shape.dtype, device);
    if (!problem.weights.empty()) {
      weights_ = tensor_of(problem.weights, {problem.rows()}, DType::f32, device);
    }
    out_ = poisoned_tensor(problem.out_shape(), out_type, device);
    const Shape pairs{shape.queries, shape.heads};
    max_ = poisoned_tensor(pairs, DType::f32, device);
    sum_ = poisoned_tensor(pairs, DType::f32, device);
  }
  QueryView queries() const {
    return {queries_.view(), problem_.query_ordinals, problem_.query_modalities};
  }
  RowSet memory() const {
    RowSet memory{keys_.view(), values_.view(), problem_.row_ordinals, problem_.row_modalities};
    if (weights_.defined()) memory.weights = weights_.view();
    return memory;
  }
  TensorView out() { return out_.view(); }
  Tensor& out_tensor() { return out_; }
  SoftmaxState state() { return {max_.data<float>(), sum_.data<float>()}; }
  Context context(const ThreadPool& pool) const { return Context(pool, device_); }

  std::vector<float> result() const { return floats_of(out_); }
  std::vector<float> max() const { return floats_of(max_); }
  std::vector<float> sum() const { return floats_of(sum_); }

 private:
  const Problem& problem_;
  Device device_;
  Tensor queries_, keys_, values_, weights_, out_, max_, sum_;
};

// Tests that need a GPU.
class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no GPU on this machine";
  }
  Device device_ = Device::cuda(0);
  ThreadPool pool_{2};
};

inline double error_of(const std::vector<float>& actual, const std::vector<double>& expected) {
  return relative_error(std::span<const float>(actual), std::span<const double>(expected));
}

// Twice what a bf16 computation loses, and what f32 loses where that is nothing (a single key).
inline double allowed(const Expected& expected) {
  return 1e-6 + 2 * relative_error(std::span<const double>(expected.rounded),
                                   std::span<const double>(expected.out));
}

// Rounds the queries to bf16, so that a kernel that does so loses nothing.
inline void narrow_queries(Problem& problem) {
  for (float& value : problem.query_data) value = bf16::from_float(value).to_float();
}

// Tiles of random queries in random order, each with random pieces of memory: strided or gathered,
// never the same row twice. One tile in ten reads nothing.
inline Plan random_plan(Random& random, const Problem& problem, int64_t longest_piece = 90) {
  PlanBuilder builder(problem.queries(), problem.memory());
  const auto heads = static_cast<int>(problem.shape.heads);
  const int group = heads / static_cast<int>(problem.shape.kv_heads);
  for (int head = 0; head < heads;) {
    const int take = 1 + static_cast<int>(random.below(group - head % group));
    std::vector<int32_t> order;
    for (int32_t i = 0; i < problem.shape.queries; ++i) {
      if (random.uniform() < 0.95) order.push_back(i);
    }
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
    }
    for (size_t begin = 0; begin < order.size();) {
      builder.begin_queries();
      const size_t end = std::min(order.size(), begin + 1 + static_cast<size_t>(random.below(150)));
      for (; begin < end; ++begin) builder.add_query(order[begin]);
      builder.begin_segments();
      const int64_t rows = random.below(10) == 0 ? 0 : problem.rows();
      for (int64_t row = 0; row < rows;) {
        const int64_t span = std::min(problem.rows() - row, 1 + random.below(longest_piece));
        const int64_t kind = random.below(3);
        if (kind == 0) {
          const auto stride = static_cast<int32_t>(1 + random.below(7));
          builder.add_rows(row, (span + stride - 1) / stride, stride);
        } else if (kind == 1) {
          std::vector<int32_t> some;
          for (int64_t i = row; i < row + span; ++i) {
            if (random.below(3) == 0) some.push_back(static_cast<int32_t>(i));
          }
          builder.add_gathered(some);
        }
        row += span;
      }
      builder.add_tile(head, take);
    }
    head += take;
  }
  return builder.take();
}

// The answer that a plan stands for.
inline Expected reference_of(const Problem& problem, const Plan& plan) {
  std::vector<std::vector<uint8_t>> masks;
  for (int head = 0; head < problem.shape.heads; ++head) {
    masks.push_back(expand(plan, problem.queries(), problem.memory(), head));
  }
  return reference(problem, [&](int64_t q, int64_t head, int64_t row) {
    return masks[static_cast<size_t>(head)][static_cast<size_t>(q * problem.rows() + row)] != 0;
  });
}

}  // namespace kinora::testing
