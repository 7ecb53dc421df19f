#include "model/quantize/input_moments.h"

#include <cmath>

namespace kinora {
namespace {

// Rows are added up in f32 a few hundred at a time before they join the sums of all: so no sum has
// more than some hundred small terms behind a large one.
constexpr int64_t rows_together = 512;

// Adds the products of `count` rows of a block to its triangle, four rows at a time so that a sum
// is read and written once for all of them.
void add_rows(ConstTensorView rows, int64_t first, int64_t count, int64_t column, int64_t width,
              float* triangle) {
  int64_t row = first;
  for (; row + 4 <= first + count; row += 4) {
    const float* a = rows.row<float>(row) + column;
    const float* b = rows.row<float>(row + 1) + column;
    const float* c = rows.row<float>(row + 2) + column;
    const float* d = rows.row<float>(row + 3) + column;
    float* sums = triangle;
    for (int64_t i = 0; i < width; ++i) {
      const float ai = a[i], bi = b[i], ci = c[i], di = d[i];
      for (int64_t j = i; j < width; ++j) {
        sums[j - i] += ai * a[j] + bi * b[j] + (ci * c[j] + di * d[j]);
      }
      sums += width - i;
    }
  }
  for (; row < first + count; ++row) {
    const float* a = rows.row<float>(row) + column;
    float* sums = triangle;
    for (int64_t i = 0; i < width; ++i) {
      for (int64_t j = i; j < width; ++j) sums[j - i] += a[i] * a[j];
      sums += width - i;
    }
  }
}

}  // namespace

InputMoments::InputMoments(int64_t inputs) : inputs_(inputs) {
  const int64_t last = inputs % block;
  sums_.resize(static_cast<size_t>(start(inputs / block) + last * (last + 1) / 2));
}

bool InputMoments::finite() const {
  return std::all_of(sums_.begin(), sums_.end(), [](float sum) { return std::isfinite(sum); });
}

void InputMoments::add(const ThreadPool& threads, ConstTensorView rows) {
  threads.parallel_for(blocks(), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> together;
    for (int64_t index = begin; index < end; ++index) {
      const int64_t across = width(index);
      float* sums = sums_.data() + start(index);
      for (int64_t first = 0; first < rows.size(0); first += rows_together) {
        const int64_t count = std::min(rows_together, rows.size(0) - first);
        together.assign(static_cast<size_t>(across * (across + 1) / 2), 0.0f);
        add_rows(rows, first, count, index * block, across, together.data());
        for (size_t i = 0; i < together.size(); ++i) sums[i] += together[i];
      }
    }
  });
}

}  // namespace kinora
