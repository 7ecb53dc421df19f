#include "model/quantize/compensation.h"

#include <algorithm>
#include <cmath>

namespace kinora {
namespace {

// Every input counts as having this share of noise of its own. Sums over a sample say only roughly
// how inputs go together, and inputs that are all the same would leave nothing to divide by.
constexpr double damping = 0.01;

constexpr int64_t block = InputMoments::block;

// Where the shares of a block begin, and in a block those of column i.
int64_t start(int64_t index) { return index * (block * (block - 1) / 2); }
int64_t place(int64_t width, int64_t i) { return i * width - i * (i + 1) / 2; }

// How the inputs of one block, each brought to size 1, follow from the later ones. In double
// precision: what the others leave of an input can be small.
class Block {
 public:
  Block(const InputMoments& moments, int64_t index)
      : width_(moments.width(index)), values_(static_cast<size_t>(width_ * width_)) {
    for (int64_t i = 0; i < width_; ++i) {
      sizes_.push_back(std::sqrt(static_cast<double>(moments.sum(index, i, i))));
    }
    for (int64_t i = 0; i < width_; ++i) {
      for (int64_t j = i + 1; j < width_; ++j) {
        // An input that is always zero goes with none.
        const double size = this->size(i) * this->size(j);
        at(i, j) = size > 0 ? moments.sum(index, i, j) / size : 0.0;
      }
      at(i, i) = 1 + damping;
    }
    factor();
  }

  double size(int64_t i) const { return sizes_[static_cast<size_t>(i)]; }
  // What the later inputs leave of input i.
  double rest(int64_t i) const { return at(i, i); }

  // The multiples of the later inputs whose sum is closest to input i: shares [i + 1, width).
  void tell(int64_t i, std::vector<double>& shares) const {
    for (int64_t k = i + 1; k < width_; ++k) shares[static_cast<size_t>(k)] = at(i, k);
    for (int64_t m = i + 1; m < width_; ++m) {
      const double share = shares[static_cast<size_t>(m)] /= at(m, m);
      for (int64_t k = m + 1; k < width_; ++k) shares[static_cast<size_t>(k)] -= share * at(m, k);
    }
  }

 private:
  // The matrix becomes V, upper triangular, of which it was V·Vᵀ: Cholesky's factor, from the last
  // input on. So what V says of an input holds of it beside the later ones.
  void factor() {
    for (int64_t j = width_ - 1; j >= 0; --j) {
      for (int64_t i = 0; i <= j; ++i) {
        double left = at(i, j);
        for (int64_t k = j + 1; k < width_; ++k) left -= at(i, k) * at(j, k);
        at(i, j) = left;
      }
      // Never below the damping but for rounding.
      at(j, j) = std::sqrt(std::max(at(j, j), damping / 2));
      for (int64_t i = 0; i < j; ++i) at(i, j) /= at(j, j);
    }
  }
  double& at(int64_t i, int64_t j) { return values_[static_cast<size_t>(i * width_ + j)]; }
  double at(int64_t i, int64_t j) const { return values_[static_cast<size_t>(i * width_ + j)]; }

  int64_t width_;
  std::vector<double> sizes_;
  std::vector<double> values_;
};

}  // namespace

Compensation::Compensation(const ThreadPool& threads, const InputMoments& moments,
                           const std::vector<float>& scales)
    : columns_(moments.inputs()), importance_(static_cast<size_t>(columns_)) {
  const int64_t last = columns_ % block;
  shares_.resize(static_cast<size_t>(start(columns_ / block) + last * (last - 1) / 2));
  threads.parallel_for(moments.blocks(), 1, [&](int64_t begin, int64_t end) {
    std::vector<double> shares(static_cast<size_t>(block)), sizes(shares);
    for (int64_t index = begin; index < end; ++index) {
      const Block inputs(moments, index);
      const int64_t first = index * block, width = moments.width(index);
      for (int64_t i = 0; i < width; ++i) {
        const auto column = static_cast<size_t>(first + i);
        sizes[static_cast<size_t>(i)] = inputs.size(i) / (scales.empty() ? 1.0f : scales[column]);
      }
      for (int64_t i = 0; i < width; ++i) {
        const double size = sizes[static_cast<size_t>(i)], rest = size * inputs.rest(i);
        importance_[static_cast<size_t>(first + i)] = static_cast<float>(rest * rest);
        inputs.tell(i, shares);
        float* own = shares_.data() + start(index) + place(width, i);
        for (auto k = static_cast<size_t>(i + 1); k < static_cast<size_t>(width); ++k) {
          *own++ = sizes[k] > 0 ? static_cast<float>(shares[k] * size / sizes[k]) : 0;
        }
      }
    }
  });
}

void Compensation::round_row(const Rounding& rounding, float* row, uint8_t* codes,
                             float* scales) const {
  float scale = 1;
  for (int64_t first = 0; first < columns_; first += block) {
    const int64_t width = std::min(block, columns_ - first);
    const float* shares = shares_.data() + start(first / block);
    for (int64_t i = 0; i < width; ++i) {
      const int64_t column = first + i;
      if (column % rounding.group == 0) {
        const int64_t count = std::min(rounding.group, columns_ - column);
        scale = best_scale(rounding, row + column, count, importance_.data() + column);
        scales[column / rounding.group] = scale;
      }
      codes[column] = nearest_code(rounding.kind, row[column] / scale);
      const float error =
          row[column] - static_cast<float>(static_cast<int8_t>(codes[column])) * scale;
      const float* own = shares + place(width, i);
      float* later = row + column + 1;
      for (int64_t k = 0; k < width - i - 1; ++k) later[k] += error * own[k];
    }
  }
}

}  // namespace kinora
