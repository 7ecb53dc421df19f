// Policies whose heads follow line patterns: one pattern for every head (the baselines), or a table
// that gives each its own (mminference).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/cuda/lines/line_plan_cuda.h"
#include "attention/policies/head_table.h"
#include "attention/policies/sparse_attention.h"

namespace kinora {

class PatternAttention final : public SparseAttention {
 public:
  // The same for every head.
  PatternAttention(std::string name, HeadChoice choice, SparseOptions options);
  // From a table; it must be complete.
  PatternAttention(std::string name, std::shared_ptr<const HeadTable> table, SparseOptions options);

  std::string_view name() const override { return name_; }

 protected:
  std::vector<LabelledPlan> sparse_plans(const Context& context, int layer,
                                         const QueryView& queries, const RowSet& rows,
                                         float scale) override;
  void attend_on_gpu(const Context& context, int layer, const QueryView& queries,
                     const RowSet& rows, float scale, TensorView out) override;
  std::optional<GpuWorkload> gpu_workload(int layer, const QueryView& queries,
                                          const RowSet& rows) const override;
  bool plans_by_data(int layer, int heads) const override;
  bool plans_alike() const override { return table_ == nullptr; }

 private:
  const HeadChoice& choice(int layer, int head) const;
  void check_heads(int layer, int heads) const;

  // What one region of a boundary gets on a GPU: its rows and queries, and every head's lines
  // there.
  struct GpuRegion {
    const cuda_attention::LineSpace* space = nullptr;
    std::vector<cuda_attention::LineHead> heads;
    std::string label;
    int64_t head_count = 0;  // that have lines there
  };
  // Empty where a head has parts that only the CPU plans.
  std::vector<GpuRegion> gpu_regions(const Context& context, int layer, const QueryView& queries,
                                     const RowSet& rows);

  std::string name_;
  HeadChoice choice_;
  cuda_attention::LineSpaces gpu_spaces_;
  std::shared_ptr<const HeadTable> table_;  // null: choice_ for all
};

}  // namespace kinora
