#include "model/quantize/compensation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace kinora {
namespace {

// Every input counts as having this share of noise of its own. Sums over a sample say only roughly
// how inputs go together in other texts, and inputs that are all the same would leave nothing to
// divide by.
constexpr double damping = 0.1;

constexpr int64_t block = InputMoments::block;

// Where the shares of a block begin, and in a block those of the column in place i.
int64_t start(int64_t index) { return index * (block * (block - 1) / 2); }
int64_t place(int64_t width, int64_t i) { return i * width - i * (i + 1) / 2; }

// How the inputs of one block, each brought to size 1, follow from those later in its order. In
// double precision: what the others leave of an input can be small.
class Block {
 public:
  // `scales` [width] are what the inputs are divided by, or null.
  Block(const InputMoments& moments, int64_t index, const float* scales)
      : width_(static_cast<size_t>(moments.width(index))), values_(width_ * width_) {
    std::vector<double> sizes(width_);
    for (size_t i = 0; i < width_; ++i) {
      const auto at = static_cast<int64_t>(i);
      const double size = std::sqrt(static_cast<double>(moments.sum(index, at, at)));
      sizes[i] = size / (scales != nullptr ? scales[i] : 1.0f);
    }
    order_.resize(width_);
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::stable_sort(order_.begin(), order_.end(),
                     [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
    for (const size_t column : order_) sizes_.push_back(sizes[column]);
    for (size_t i = 0; i < width_; ++i) {
      for (size_t j = i + 1; j < width_; ++j) {
        const auto a = static_cast<int64_t>(order_[i]), b = static_cast<int64_t>(order_[j]);
        const double size = std::sqrt(static_cast<double>(moments.sum(index, a, a)) *
                                      static_cast<double>(moments.sum(index, b, b)));
        // An input that is always zero goes with none.
        at(i, j) = size > 0 ? moments.sum(index, a, b) / size : 0.0;
      }
      at(i, i) = 1 + damping;
    }
    factor();
  }

  size_t width() const { return width_; }
  // The column, counted from the block's first, in place i, and the size of its input.
  size_t column(size_t i) const { return order_[i]; }
  double size(size_t i) const { return sizes_[i]; }
  // What the later inputs leave of the one in place i.
  double rest(size_t i) const { return at(i, i); }

  // The multiples of the later inputs whose sum is closest to that in place i: shares [i + 1, …).
  void tell(size_t i, std::vector<double>& shares) const {
    for (size_t k = i + 1; k < width_; ++k) shares[k] = at(i, k);
    for (size_t m = i + 1; m < width_; ++m) {
      const double share = shares[m] /= at(m, m);
      for (size_t k = m + 1; k < width_; ++k) shares[k] -= share * at(m, k);
    }
  }

 private:
  // The matrix becomes V, upper triangular, of which it was V·Vᵀ: Cholesky's factor, from the last
  // input on. So what V says of an input holds of it beside the later ones.
  void factor() {
    for (size_t j = width_; j-- > 0;) {
      for (size_t i = 0; i <= j; ++i) {
        double left = at(i, j);
        for (size_t k = j + 1; k < width_; ++k) left -= at(i, k) * at(j, k);
        at(i, j) = left;
      }
      // Never below the damping but for rounding.
      at(j, j) = std::sqrt(std::max(at(j, j), damping / 2));
      for (size_t i = 0; i < j; ++i) at(i, j) /= at(j, j);
    }
  }
  double& at(size_t i, size_t j) { return values_[i * width_ + j]; }
  double at(size_t i, size_t j) const { return values_[i * width_ + j]; }

  size_t width_;
  std::vector<size_t> order_;
  std::vector<double> sizes_;
  std::vector<double> values_;
};

}  // namespace

Compensation::Compensation(const ThreadPool& threads, const InputMoments& moments,
                           const std::vector<float>& scales)
    : order_(static_cast<size_t>(moments.inputs())), importance_(order_.size()) {
  const int64_t last = moments.inputs() % block;
  shares_.resize(static_cast<size_t>(start(moments.inputs() / block) + last * (last - 1) / 2));
  threads.parallel_for(moments.blocks(), 1, [&](int64_t begin, int64_t end) {
    std::vector<double> shares(static_cast<size_t>(block));
    for (int64_t index = begin; index < end; ++index) {
      const auto first = static_cast<size_t>(index * block);
      const Block inputs(moments, index, scales.empty() ? nullptr : scales.data() + first);
      float* own = shares_.data() + start(index);
      for (size_t i = 0; i < inputs.width(); ++i) {
        const size_t column = first + inputs.column(i);
        order_[first + i] = static_cast<int64_t>(column);
        const double rest = inputs.size(i) * inputs.rest(i);
        importance_[column] = static_cast<float>(rest * rest);
        inputs.tell(i, shares);
        for (size_t k = i + 1; k < inputs.width(); ++k) {
          const double size = inputs.size(k);
          *own++ = size > 0 ? static_cast<float>(shares[k] * inputs.size(i) / size) : 0.0f;
        }
      }
    }
  });
}

void Compensation::round_row(const Rounding& rounding, const float* row, uint8_t* codes,
                             float* scales) const {
  const auto columns = static_cast<int64_t>(order_.size());
  for (int64_t begin = 0; begin < columns; begin += rounding.group) {
    const int64_t count = std::min(rounding.group, columns - begin);
    scales[begin / rounding.group] =
        best_scale(rounding, row + begin, count, importance_.data() + begin);
  }
  std::array<float, static_cast<size_t>(block)> left;
  for (int64_t first = 0; first < columns; first += block) {
    const int64_t width = std::min(block, columns - first);
    const int64_t* order = order_.data() + first;
    const float* shares = shares_.data() + start(first / block);
    for (int64_t i = 0; i < width; ++i) left[static_cast<size_t>(i)] = row[order[i]];
    for (int64_t i = 0; i < width; ++i) {
      float* weight = left.data() + i;
      const float scale = scales[order[i] / rounding.group];
      const uint8_t code = nearest_code(rounding.kind, *weight / scale);
      codes[order[i]] = code;
      const float error = *weight - static_cast<float>(static_cast<int8_t>(code)) * scale;
      const float* own = shares + place(width, i);
      for (int64_t k = 0; k < width - i - 1; ++k) weight[k + 1] += error * own[k];
    }
  }
}

}  // namespace kinora
