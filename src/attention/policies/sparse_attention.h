// What all sparse policies share: the dense fall-back, layers and last queries kept dense, delta
// correction, the report, and running plans. A policy itself only says which plans a layer gets.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "attention/plan/plan.h"
#include "attention/planner.h"
#include "attention/policies/dense.h"
#include "attention/policies/gpu_cost.h"
#include "attention/policies/gpu_plan_store.h"
#include "attention/policies/gpu_work.h"
#include "attention/report.h"
#include "attention/runner.h"

namespace kinora {

constexpr int64_t default_dense_last = 128;

// How many queries at the end of a group are text, at most `most`.
int64_t last_text(const QueryView& queries, int64_t most);

struct SparseOptions {
  // Groups that read fewer rows than this run densely, and on a GPU all that dense attention is
  // expected to read sooner (gpu_cost.h); 0: neither.
  int64_t dense_below = 8192;
  // So do groups of fewer queries: measuring alone would cost as much. At least 2, since what is
  // generated reads everything.
  int64_t least_queries = 64;
  // The text that ends a group reads everything, up to this many queries: the question is there,
  // and generation continues from its rows (docs/methods/attention.md).
  int64_t dense_last = default_dense_last;
  int64_t dense_layers = 0;                     // the first ones read everything
  int64_t delta_stride = 0;                     // delta correction measures every Nth query; 0: off
  AttentionDtype dtype = AttentionDtype::bf16;  // of products on a GPU
};

class SparseAttention : public Attention, public Planner {
 public:
  explicit SparseAttention(SparseOptions options) : options_(std::move(options)) {
    report_.dtype = options_.dtype;
  }

  void attend(const Context& context, int layer, const QueryView& queries, const RowSet& rows,
              float scale, TensorView out) final;

  const AttentionReport* report() const override;
  void clear_report() override;
  Planner* planner() override { return this; }

  // Dense last queries are among the plans.
  std::vector<LabelledPlan> plans(const Context& context, int layer, const QueryView& queries,
                                  const RowSet& rows, float scale) override;
  bool falls_back(int layer, const QueryView& queries, const RowSet& rows) const override;
  void set_length(int64_t tokens) override {
    if (length_ != tokens) gpu_plans_ = {};  // sizes follow it
    length_ = tokens;
  }
  void keep_state(SoftmaxState state) override { state_ = state; }

 protected:
  // The policy itself. Its queries are without those that always read everything.
  virtual std::vector<LabelledPlan> sparse_plans(const Context& context, int layer,
                                                 const QueryView& queries, const RowSet& rows,
                                                 float scale) = 0;
  // Everything but fall-back and last queries; the default runs the plans, then corrects.
  virtual void attend_sparsely(const Context& context, int layer, const QueryView& queries,
                               const RowSet& rows, float scale, TensorView out);
  // The same on a GPU. The default plans on the CPU, from copies, and runs there; a policy that can
  // plan on the device does so.
  virtual void attend_on_gpu(const Context& context, int layer, const QueryView& queries,
                             const RowSet& rows, float scale, TensorView out);
  // Whether sparse_plans looks at queries and keys, and not only at their ordinals and modalities.
  virtual bool plans_by_data(int layer, int heads) const {
    (void)layer, (void)heads;
    return true;
  }
  // What a GPU would have to do for these queries; none: it cannot be told.
  virtual std::optional<GpuWorkload> gpu_workload(int layer, const QueryView& queries,
                                                  const RowSet& rows) const {
    (void)layer, (void)queries, (void)rows;
    return std::nullopt;
  }
  // Whether it gives all layers the same plans for the same ordinals and modalities.
  virtual bool plans_alike() const { return false; }
  // Corrects what is in `out` by every `stride`-th query; 0: not at all.
  void correct_on_gpu(const Context& context, const QueryView& queries, const RowSet& rows,
                      float scale, int64_t stride, TensorView out);
  // Runs plans that together cover all heads and books their time and pairs.
  void run(const Context& context, std::vector<LabelledPlan> planned, const QueryView& queries,
           const RowSet& rows, float scale, TensorView out);

  // How plans are run on a GPU.
  RunOptions gpu_run() {
    return {.state = state_, .dtype = options_.dtype, .launches = &launches_};
  }

  // The length that sizes follow.
  int64_t length(const RowSet& rows) const { return std::max(length_, rows.count()); }

  SparseOptions options_;
  SoftmaxState state_;  // to be filled by whatever runs a policy's plans
  mutable AttentionReport report_;
  mutable GpuWork gpu_work_;  // under way, not in the report yet

 private:
  // Queries from `first` on.
  void attend_densely(const Context& context, const char* label, const QueryView& queries,
                      const RowSet& rows, float scale, TensorView out, int64_t first);

  // Whether a GPU is expected to read all of it sooner than what the policy chooses.
  bool dense_is_faster(int layer, const QueryView& queries, const RowSet& rows) const;

  AttentionLaunches launches_;
  GpuPlanStore gpu_plans_;
  int64_t length_ = 0;
};

// Seconds since construction.
class RunTimer {
 public:
  RunTimer();
  double seconds() const;

 private:
  int64_t start_;
};

}  // namespace kinora
