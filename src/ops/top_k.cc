#include "ops/top_k.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/checks.h"
#include "ops/cpu_kernels.h"
#include "ops/cuda_kernels.h"
#include "ops/softmax.h"

namespace kinora {
namespace {

constexpr int64_t most_ranked = 256;  // of each row

void check_row(const Context& context, std::string_view op, ConstTensorView x) {
  const OpChecks checks(context, op, {{"x", x}});
  checks.f32("x", x);
  checks.rank("x", x, 1, 1);
  checks.that(x.size(0) <= INT32_MAX, "x has more entries than an index can name");
}

bool better(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.index < b.index;
}

int64_t bytes_of_results(int64_t rows, int64_t k) {
  return rows * static_cast<int64_t>(sizeof(double) + sizeof(int32_t)) +
         rows * k * static_cast<int64_t>(sizeof(Candidate));
}

}  // namespace

RankedThere::RankedThere(const Context& context, int64_t rows, int64_t columns, int64_t k)
    : rows_(rows),
      columns_(columns),
      k_(k),
      parts_(DType::u8, {rows * cuda::rank_room(columns, k)}, context.device),
      results_(DType::u8, {bytes_of_results(rows, k)}, context.device) {}

bool RankedThere::takes(int64_t columns, int64_t k) {
  return k <= columns && cuda::rank_room(columns, k) > 0;
}

const double* RankedThere::mass() const {
  return reinterpret_cast<const double*>(ConstTensorView(results_.view()).raw());
}
const Candidate* RankedThere::best() const {
  return reinterpret_cast<const Candidate*>(mass() + rows_);
}
const int32_t* RankedThere::taken() const {
  return reinterpret_cast<const int32_t*>(best() + rows_ * k_);
}

void RankedThere::rank(const Context& context, ConstTensorView x) {
  const OpChecks checks(context, "RankedThere", {{"x", x}});
  checks.f32("x", x);
  checks.rank("x", x, 2, 2);
  checks.that(x.size(0) >= 1 && x.size(0) <= rows_ && x.size(1) == columns_,
              "x is not what there is room for");
  cuda::rank_rows(context, {x, k_, parts_.view().raw(), const_cast<double*>(mass()),
                            const_cast<Candidate*>(best()), const_cast<int32_t*>(taken())});
}

int32_t argmax(const Context& context, ConstTensorView x) {
  check_row(context, "argmax", x);
  return argmax_rows(context,
                     ConstTensorView(x.raw(), x.dtype(), Shape{1, x.size(0)},
                                     ConstTensorView::Strides{x.size(0), 1}, x.device()))[0];
}

std::vector<int32_t> argmax_rows(const Context& context, ConstTensorView x) {
  const OpChecks checks(context, "argmax", {{"x", x}});
  checks.f32("x", x);
  checks.rank("x", x, 2, 2);
  std::vector<int64_t> best(static_cast<size_t>(x.size(0)), -1);
  if (x.size(1) > 0 && context.device.is_cpu()) {
    for (size_t i = 0; i < best.size(); ++i) {
      best[i] = cpu::argmax(x.row<float>(static_cast<int64_t>(i)), x.size(1));
    }
  } else if (x.size(1) > 0 && x.size(0) > 0) {
    best = cuda::argmax_rows(context, x);
  }
  if (std::any_of(best.begin(), best.end(), [](int64_t index) { return index < 0; })) {
    throw Error(ErrorKind::bad_input,
                "argmax: there is no largest of " + std::to_string(x.size(1)) +
                    " numbers that are all NaN; the model's weights may be damaged");
  }
  return {best.begin(), best.end()};
}

// A heap of the k best so far whose front is the worst of them; most entries fail one comparison.
std::vector<Candidate> top_k(const Context& context, ConstTensorView x, int64_t k) {
  check_row(context, "top_k", x);
  if (!context.device.is_cpu()) return cuda::top_k(context, x, k);
  const auto limit = static_cast<size_t>(std::clamp<int64_t>(k, 0, x.size(0)));
  std::vector<Candidate> best;
  if (limit == 0) return best;
  best.reserve(limit + 1);
  const float* values = x.data<float>();
  for (int32_t i = 0; i < static_cast<int32_t>(x.size(0)); ++i) {
    const Candidate candidate{i, values[i]};
    if (std::isnan(candidate.value)) continue;
    if (best.size() == limit && !better(candidate, best.front())) continue;
    best.push_back(candidate);
    std::push_heap(best.begin(), best.end(), better);
    if (best.size() > limit) {
      std::pop_heap(best.begin(), best.end(), better);
      best.pop_back();
    }
  }
  std::sort_heap(best.begin(), best.end(), better);
  return best;
}

std::vector<RankedRow> top_k_rows(const Context& context, ConstTensorView x, int64_t k) {
  const OpChecks checks(context, "top_k_rows", {{"x", x}});
  checks.f32("x", x);
  checks.rank("x", x, 2, 2);
  checks.that(k >= 0 && k <= most_ranked, "x is ranked beyond its first 256 entries");
  checks.that(x.size(1) <= INT32_MAX, "x has more entries than an index can name");
  if (!context.device.is_cpu() && x.size(0) > 0 && x.size(1) > 0 && k > 0) {
    return cuda::top_k_rows(context, x, std::min(k, x.size(1)));
  }
  std::vector<RankedRow> result(static_cast<size_t>(x.size(0)));
  for (size_t i = 0; i < result.size() && k > 0; ++i) {
    const ConstTensorView row = x[static_cast<int64_t>(i)];
    result[i].best = top_k(context, row, k);
    if (result[i].best.empty()) continue;
    result[i].mass = exp_sum(context, row, result[i].best[0].value, 1);
  }
  return result;
}

}  // namespace kinora
