// How the inputs of a product go together: the sums of x_i·x_j over all rows that were seen, for
// inputs in the same block of 512. That much is enough to let the weights of a block make up for
// one another's rounding (compensation.h), and takes at most 1,026 bytes an input, where all pairs
// of inputs would take tens of gigabytes in a large model. Collected by InputSample.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/tensor.h"
#include "base/threads.h"

namespace kinora {

class InputMoments {
 public:
  static constexpr int64_t block = 512;  // the last one may be smaller

  InputMoments() = default;  // of nothing
  explicit InputMoments(int64_t inputs);

  int64_t inputs() const { return inputs_; }
  int64_t blocks() const { return (inputs_ + block - 1) / block; }
  int64_t width(int64_t index) const { return std::min(block, inputs_ - index * block); }
  bool finite() const;

  // rows [tokens, inputs] f32. The sums do not depend on the number of threads.
  void add(const ThreadPool& threads, ConstTensorView rows);

  // The sum for inputs i and j of a block, counted from its first.
  float sum(int64_t index, int64_t i, int64_t j) const {
    return sums_[static_cast<size_t>(start(index) +
                                     place(width(index), std::min(i, j), std::max(i, j)))];
  }

 private:
  // A triangle's rows follow one another: all sums with the first input, those with the second
  // that are left, and so on.
  static int64_t place(int64_t width, int64_t i, int64_t j) {
    return i * width - i * (i - 1) / 2 + j - i;
  }
  static int64_t start(int64_t index) { return index * (block * (block + 1) / 2); }

  int64_t inputs_ = 0;
  std::vector<float> sums_;
};

}  // namespace kinora
