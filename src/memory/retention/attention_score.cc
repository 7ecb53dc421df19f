#include "memory/retention/policies.h"
#include "memory/retention/question.h"
#include "memory/retention/row_sums.h"

namespace kinora {
namespace {

// Σ q · k over the question's tokens and heads. It is linear in q, so that the question is one sum
// (question.h).
class AttentionScore final : public RetentionRule {
 public:
  std::string_view name() const override { return "attention-score"; }
  bool needs_question() const override { return true; }
  std::vector<double> scores(const Context& context, ConstTensorView keys, ConstTensorView,
                             ConstTensorView question) const override {
    return row_products(context, keys, sum_queries(question, keys.size(1)));
  }
  std::optional<cuda::RowChoice> on_gpu(ConstTensorView keys, ConstTensorView) const override {
    return cuda::RowChoice{.rows = keys};
  }
};

}  // namespace

RetentionPolicy attention_score_policy() {
  return ratio_policy(std::make_shared<AttentionScore>(),
                      "what the question's words look at stays, by Σ q · k; serves one question");
}

}  // namespace kinora
