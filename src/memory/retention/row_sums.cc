#include "memory/retention/row_sums.h"

#include <cmath>

#include "ops/rows.h"

namespace kinora {
namespace {

// Σ term(x, place in the row) over each row.
template <typename T, typename Term>
std::vector<double> sums_of(const Context& context, ConstTensorView rows, const Term& term) {
  std::vector<double> sums(static_cast<size_t>(rows.size(0)));
  const int64_t width = rows.size(1) * rows.size(2);
  context.threads->parallel_for(rows.size(0), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* row = rows.row<T>(i);
      double sum = 0;
      for (int64_t k = 0; k < width; ++k) sum += term(widen(row[k]), static_cast<size_t>(k));
      sums[static_cast<size_t>(i)] = sum;
    }
  });
  return sums;
}

template <typename Term>
std::vector<double> row_sums(const Context& context, ConstTensorView rows, const Term& term) {
  return with_float_type(rows.dtype(),
                         [&]<typename T>(T) { return sums_of<T>(context, rows, term); });
}

}  // namespace

std::vector<double> row_norms(const Context& context, ConstTensorView rows) {
  std::vector<double> norms =
      row_sums(context, rows, [](double value, size_t) { return value * value; });
  for (double& norm : norms) norm = std::sqrt(norm);
  return norms;
}

std::vector<double> row_products(const Context& context, ConstTensorView rows,
                                 std::span<const double> weights) {
  return row_sums(context, rows,
                  [&](double value, size_t place) { return value * weights[place]; });
}

}  // namespace kinora
