// What all sparse policies share: the dense fall-back, layers kept dense, delta correction, the
// report, and running plans. A policy itself only says which plans a layer gets.
#pragma once

#include <string>
#include <vector>

#include "attention/attention.h"
#include "attention/dense.h"
#include "attention/plan.h"
#include "attention/report.h"

namespace kinora {

struct SparseOptions {
  // Groups against fewer rows than this run densely; 0 never does so for that reason. Groups of
  // fewer queries than `least_queries` always do: measuring alone would cost as much.
  int64_t dense_below = 8192;
  std::vector<int> dense_layers{};
  int64_t delta_stride = 0;  // delta correction over every so many queries; 0: off
};

// Part of a layer's attention. Plans of one layer cover different heads.
struct LabelledPlan {
  std::string label;
  Plan plan;
};

class SparseAttention : public Attention {
 public:
  static constexpr int64_t least_queries = 64;

  explicit SparseAttention(SparseOptions options) : options_(std::move(options)) {}

  void attend(const Context& context, int layer, const QueryView& queries, const RowsView& rows,
              float scale, TensorView out) final;

  // The plans that `attend` would run for this input, fall-back aside.
  virtual std::vector<LabelledPlan> plans(const Context& context, int layer,
                                          const QueryView& queries, const RowsView& rows,
                                          float scale) = 0;

  bool falls_back(int layer, const QueryView& queries, const RowsView& rows) const;
  const AttentionReport& report() const { return report_; }
  void clear_report() { report_ = {}; }

 protected:
  // Everything but fall-back; the default runs the plans, then corrects.
  virtual void attend_sparsely(const Context& context, int layer, const QueryView& queries,
                               const RowsView& rows, float scale, TensorView out);
  // Runs plans that together cover all heads and books their time and pairs.
  void run(const Context& context, const std::vector<LabelledPlan>& plans, const QueryView& queries,
           const RowsView& rows, float scale, TensorView out);

  SparseOptions options_;
  AttentionReport report_;

 private:
  DenseAttention dense_;
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
