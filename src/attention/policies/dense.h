// Every query reads every row that is not later than itself: the default of prefill and
// generation, and the yardstick of every sparse policy.
#pragma once

#include "attention/attention.h"
#include "attention/plan/plan.h"
#include "attention/report.h"
#include "attention/runner.h"

namespace kinora {

// A tile has up to `tile_rows` rows in units of (query, head): enough to pay for staging a block of
// keys, few enough that packed queries and scores stay in the first-level caches.
Plan dense_plan(const QueryView& queries, const RowSet& rows, int64_t tile_rows = 256);

// Such attention on the context's device; of the options state and type count.
void run_dense(const Context& context, const QueryView& queries, const RowSet& rows, float scale,
               TensorView out, const RunOptions& options = {});

class DenseAttention final : public Attention {
 public:
  DenseAttention() = default;
  explicit DenseAttention(AttentionDtype dtype) { report_.dtype = dtype; }

  std::string_view name() const override { return "dense"; }
  bool reads_all() const override { return true; }
  void attend(const Context& context, int layer, const QueryView& queries, const RowSet& rows,
              float scale, TensorView out) override;
  // Only how much of it ran in FP8, and only where that was asked for.
  const AttentionReport* report() const override {
    return report_.dtype == AttentionDtype::fp8 ? &report_ : nullptr;
  }
  void clear_report() override {
    const AttentionDtype dtype = report_.dtype;
    report_ = {};
    report_.dtype = dtype;
  }

 private:
  AttentionReport report_;
};

}  // namespace kinora
