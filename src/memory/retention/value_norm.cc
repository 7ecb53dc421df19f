#include "memory/retention/policies.h"
#include "memory/retention/row_sums.h"

namespace kinora {
namespace {

// ‖v‖
class ValueNorm final : public RetentionRule {
 public:
  std::string_view name() const override { return "value-norm"; }
  std::vector<double> scores(const Context& context, ConstTensorView, ConstTensorView values,
                             ConstTensorView) const override {
    return row_norms(context, values);
  }
  std::optional<cuda::RowChoice> on_gpu(ConstTensorView, ConstTensorView values) const override {
    return cuda::RowChoice{.rows = values};
  }
};

}  // namespace

RetentionPolicy value_norm_policy() {
  return ratio_policy(std::make_shared<ValueNorm>(), "the largest values stay, by ‖v‖");
}

}  // namespace kinora
