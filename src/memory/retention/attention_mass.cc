#include <algorithm>
#include <cmath>
#include <limits>

#include "memory/retention/policies.h"
#include "ops/rows.h"

namespace kinora {
namespace {

// Adds the softmax of one query over all rows to `mass`.
//   query: [head size] of a head whose keys begin at `first` in every row
template <typename T, typename Q>
void add_softmax(ConstTensorView keys, int64_t first, const Q* query, std::vector<double>& scores,
                 std::vector<double>& mass) {
  const int64_t rows = keys.size(0), size = keys.size(2);
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  double highest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const T* key = keys.row<T>(row) + first;
    double dot = 0;
    for (int64_t k = 0; k < size; ++k) dot += double{widen(query[k])} * widen(key[k]);
    scores[static_cast<size_t>(row)] = dot * scale;
    highest = std::max(highest, dot * scale);
  }
  for (double& score : scores) sum += score = std::exp(score - highest);
  for (size_t row = 0; row < scores.size(); ++row) mass[row] += scores[row] / sum;
}

// softmax over the rows of the group, Σ over the question's tokens, mean over heads
template <typename T, typename Q>
std::vector<double> masses(const Context& context, ConstTensorView keys, ConstTensorView question) {
  const int64_t rows = keys.size(0), size = keys.size(2);
  const int64_t heads = question.size(1), shared = heads / keys.size(1);
  std::vector<std::vector<double>> parts(static_cast<size_t>(heads));
  context.threads->parallel_for(heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<double> scores(static_cast<size_t>(rows));
    for (int64_t head = begin; head < end; ++head) {
      std::vector<double>& mass = parts[static_cast<size_t>(head)];
      mass.assign(static_cast<size_t>(rows), 0);
      for (int64_t token = 0; token < question.size(0); ++token) {
        add_softmax<T>(keys, head / shared * size, question.row<Q>(token) + head * size, scores,
                       mass);
      }
    }
  });
  std::vector<double> mean(static_cast<size_t>(rows), 0);
  for (const std::vector<double>& part : parts) {
    for (size_t row = 0; row < mean.size(); ++row) {
      mean[row] += part[row] / static_cast<double>(heads);
    }
  }
  return mean;
}

class AttentionMass final : public RetentionRule {
 public:
  std::string_view name() const override { return "attention-mass"; }
  bool needs_question() const override { return true; }
  std::vector<double> scores(const Context& context, ConstTensorView keys, ConstTensorView,
                             ConstTensorView question) const override {
    return with_float_type(keys.dtype(), [&]<typename T>(T) {
      return with_float_type(question.dtype(),
                             [&]<typename Q>(Q) { return masses<T, Q>(context, keys, question); });
    });
  }
};

}  // namespace

RetentionPolicy attention_mass_policy() {
  return ratio_policy(std::make_shared<AttentionMass>(),
                      "the same by softmax over the group, Σ over words, mean over heads, as "
                      "QuickVideo's code has it; one question");
}

}  // namespace kinora
