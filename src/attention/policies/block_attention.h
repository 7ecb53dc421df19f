// The yardsticks of block-sparse attention as policies: blocks chosen by their true attention
// (oracle, slower than dense) or by mean pooling.
#pragma once

#include "attention/plan/block_plan.h"
#include "attention/policies/sparse_attention.h"

namespace kinora {

enum class BlockMethod : uint8_t { mean_pool, oracle };

class BlockAttention final : public SparseAttention {
 public:
  // `keys`: chosen keys per tile, scaled below 25k rows as for MOMO.
  BlockAttention(BlockMethod method, BlockLayout layout, int64_t keys, SparseOptions options);

  std::string_view name() const override;

 protected:
  std::vector<LabelledPlan> sparse_plans(const Context& context, int layer,
                                         const QueryView& queries, const RowSet& rows,
                                         float scale) override;

 private:
  BlockMethod method_;
  BlockLayout layout_;
  int64_t keys_;
};

}  // namespace kinora
