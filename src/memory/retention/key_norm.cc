#include "memory/retention/policies.h"
#include "memory/retention/row_sums.h"

namespace kinora {
namespace {

// −‖k‖
class KeyNorm final : public RetentionRule {
 public:
  std::string_view name() const override { return "key-norm"; }
  std::vector<double> scores(const Context& context, ConstTensorView keys, ConstTensorView,
                             ConstTensorView) const override {
    std::vector<double> scores = row_norms(context, keys);
    for (double& score : scores) score = -score;
    return scores;
  }
  std::optional<cuda::RowChoice> on_gpu(ConstTensorView keys, ConstTensorView) const override {
    return cuda::RowChoice{.rows = keys, .smallest = true};
  }
};

}  // namespace

RetentionPolicy key_norm_policy() {
  return ratio_policy(std::make_shared<KeyNorm>(),
                      "the smallest keys stay, by −‖k‖ (QuickVideo); a ratio alone means this one");
}

}  // namespace kinora
