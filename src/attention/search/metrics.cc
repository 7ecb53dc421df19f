#include "attention/search/metrics.h"

#include <cmath>
#include <vector>

#include "attention/policies/dense.h"
#include "attention/runner.h"

namespace kinora {

std::vector<float> log_sums(const Context& context, const Plan& plan, const QueryView& queries,
                            const RowSet& rows, float scale) {
  const auto pairs = static_cast<size_t>(queries.count() * queries.queries.size(1));
  std::vector<float> max(pairs), sum(pairs);
  Tensor out(DType::f32, queries.queries.shape());
  run_plan(context, plan, queries, rows, scale, out, {.state = {max.data(), sum.data()}});
  for (size_t i = 0; i < pairs; ++i) max[i] += std::log(sum[i]);
  return max;
}

double captured_mass(const Context& context, const Plan& plan, const QueryView& queries,
                     const RowSet& rows, float scale) {
  const auto sparse = log_sums(context, plan, queries, rows, scale);
  const auto dense = log_sums(context, dense_plan(queries, rows), queries, rows, scale);
  double total = 0;
  for (size_t i = 0; i < dense.size(); ++i) {
    total += std::exp(static_cast<double>(sparse[i]) - static_cast<double>(dense[i]));
  }
  return dense.empty() ? 1.0 : total / static_cast<double>(dense.size());
}

double output_error(ConstTensorView actual, ConstTensorView expected, int head) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < expected.size(0); ++i) {
    const float* a = actual.row<float>(i) + head * actual.stride(1);
    const float* e = expected.row<float>(i) + head * expected.stride(1);
    for (int64_t c = 0; c < expected.size(2); ++c) {
      const double gap = static_cast<double>(a[c]) - static_cast<double>(e[c]);
      difference += gap * gap;
      norm += static_cast<double>(e[c]) * static_cast<double>(e[c]);
    }
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

}  // namespace kinora
