// Every query reads every row that is not later than itself: the default of prefill and
// generation, and the yardstick of every sparse policy.
#pragma once

#include "attention/attention.h"
#include "attention/plan/plan.h"

namespace kinora {

// A tile has up to `tile_rows` rows in units of (query, head): enough to pay for staging a block of
// keys, few enough that packed queries and scores stay in the first-level caches.
Plan dense_plan(const QueryView& queries, const RowSet& rows, int64_t tile_rows = 256);

class DenseAttention final : public Attention {
 public:
  std::string_view name() const override { return "dense"; }
  bool reads_all() const override { return true; }
  void attend(const Context& context, int layer, const QueryView& queries, const RowSet& rows,
              float scale, TensorView out) override;
};

}  // namespace kinora
