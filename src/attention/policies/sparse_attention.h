// What all sparse policies share: the dense fall-back, layers and last queries kept dense, delta
// correction, the report, and running plans. A policy itself only says which plans a layer gets.
#pragma once

#include <string>
#include <vector>

#include "attention/attention.h"
#include "attention/plan/plan.h"
#include "attention/policies/dense.h"
#include "attention/report.h"

namespace kinora {

constexpr int64_t default_dense_last = 128;

// How many queries at the end of a group are text, at most `most`.
int64_t last_text(const QueryView& queries, int64_t most);

struct SparseOptions {
  // Groups against fewer rows than this run densely; 0 never does so for that reason. Groups of
  // fewer queries than `least_queries` always do: measuring alone would cost as much.
  int64_t dense_below = 8192;
  // Text that ends a group reads everything, at most so many queries of it: the question stands
  // there, and what is generated goes on from its rows (docs/methods/attention.md).
  int64_t dense_last = default_dense_last;
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

  // The plans that `attend` would run for this input, fall-back aside, dense last queries included.
  std::vector<LabelledPlan> plans(const Context& context, int layer, const QueryView& queries,
                                  const RowsView& rows, float scale);

  bool falls_back(int layer, const QueryView& queries, const RowsView& rows) const;
  const AttentionReport& report() const { return report_; }
  void clear_report() { report_ = {}; }

 protected:
  // The policy itself. Its queries are without those that always read everything.
  virtual std::vector<LabelledPlan> sparse_plans(const Context& context, int layer,
                                                 const QueryView& queries, const RowsView& rows,
                                                 float scale) = 0;
  // Everything but fall-back and last queries; the default runs the plans, then corrects.
  virtual void attend_sparsely(const Context& context, int layer, const QueryView& queries,
                               const RowsView& rows, float scale, TensorView out);
  // Runs plans that together cover all heads and books their time and pairs.
  void run(const Context& context, std::vector<LabelledPlan> planned, const QueryView& queries,
           const RowsView& rows, float scale, TensorView out);

  SparseOptions options_;
  AttentionReport report_;

 private:
  void attend_densely(const Context& context, int layer, const char* label,
                      const QueryView& queries, const RowsView& rows, float scale, TensorView out);

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
