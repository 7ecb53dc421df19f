// Every query reads every row that is not later than itself: the default of prefill and
// generation, and the yardstick of every sparse policy.
#pragma once

#include "attention/attention.h"
#include "attention/plan.h"

namespace kinora {

Plan dense_plan(const QueryView& queries, const RowsView& rows);

class DenseAttention final : public Attention {
 public:
  std::string_view name() const override { return "dense"; }
  void attend(const Context& context, int layer, const QueryView& queries, const RowsView& rows,
              float scale, TensorView out) override;
};

}  // namespace kinora
