// What changed and stands out: a token that moves with its whole frame (a cut, a wave of the
// background) says less than one that differs from the rest of the frame as well, and one that
// stands out but has been there before says nothing new.
#include <algorithm>

#include "engine/tokens/changes.h"
#include "engine/tokens/policies.h"
#include "ops/cosine.h"
#include "ops/elementwise.h"

namespace kinora {
namespace {

// The sum of the tokens of each unit, f32 [units, hidden]: halves are added until one is left.
Tensor unit_sums(const Context& context, ConstTensorView tokens, int64_t units) {
  const int64_t width = tokens.size(1);
  int64_t count = tokens.size(0) / units;
  Tensor sums = copy_of(context, tokens).reshaped({units, count, width});
  const auto part = [&](int64_t begin, int64_t rows) {
    std::byte* data = sums.view()[0].rows(begin, rows).raw();
    return TensorView(data, DType::f32, Shape{units, rows, width},
                      {sums.view().stride(0), width, 1}, context.device);
  };
  for (; count > 1; count -= count / 2) {
    const int64_t half = count / 2;
    add(context, part(0, half), part(count - half, half), part(0, half));
  }
  return copy_of(context, ConstTensorView(sums.view().raw(), DType::f32, Shape{units, width},
                                          {sums.view().stride(0), 1}, context.device));
}

class DistinctJudge final : public TokenJudge {
 public:
  explicit DistinctJudge(int64_t tokens_per_unit)
      : unit_(tokens_per_unit), changes_(tokens_per_unit) {}

  std::vector<float> scores(const Context& context, ConstTensorView tokens,
                            int64_t units) override {
    const bool first = std::exchange(first_, false);
    std::vector<float> scores = changes_.next(context, tokens, units);
    if (unit_ == 1) return scores;  // there is no rest of the frame
    const Tensor sums = unit_sums(context, tokens, units);
    Tensor alike(DType::f32, {units * unit_}, context.device);
    for (int64_t i = 0; i < units; ++i) {
      const ConstTensorView sum(sums.view()[i].raw(), DType::f32, Shape{unit_, tokens.size(1)},
                                {0, 1}, context.device);
      cosine_rows(context, tokens.rows(i * unit_, unit_), sum, alike.view().rows(i * unit_, unit_));
    }
    const std::vector<float> apart = one_minus(alike);
    for (size_t i = first ? static_cast<size_t>(unit_) : 0; i < scores.size(); ++i) {
      scores[i] = std::max(0.0f, scores[i]) * std::max(0.0f, apart[i]);
    }
    return scores;
  }

 private:
  const int64_t unit_;
  Changes changes_;
  bool first_ = true;
};

class Distinct final : public TokenRule {
 public:
  std::string_view name() const override { return "distinct"; }
  std::unique_ptr<TokenJudge> begin(int64_t tokens_per_unit) const override {
    return std::make_unique<DistinctJudge>(tokens_per_unit);
  }
};

}  // namespace

TokenPolicy distinct_policy() {
  return token_share_policy(std::make_shared<Distinct>(),
                            "what changed and stands out goes on, by (1 − cosine to one step "
                            "earlier) · (1 − cosine to the mean of its step)");
}

}  // namespace kinora
