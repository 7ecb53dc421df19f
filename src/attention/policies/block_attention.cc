#include "attention/policies/block_attention.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"

namespace kinora {

BlockAttention::BlockAttention(BlockMethod method, BlockLayout layout, int64_t keys,
                               SparseOptions options)
    : SparseAttention(std::move(options)), method_(method), layout_(layout), keys_(keys) {
  if (layout.tile < 1 || (layout.block != 32 && layout.block != 64)) {
    throw Error(ErrorKind::usage, fmt::format("{}: a tile of {} queries and blocks of {} keys; "
                                              "blocks must be 32 or 64",
                                              name(), layout.tile, layout.block));
  }
}

std::string_view BlockAttention::name() const {
  return method_ == BlockMethod::oracle ? "oracle" : "mean-pool";
}

std::vector<LabelledPlan> BlockAttention::sparse_plans(const Context& context, int,
                                                       const QueryView& queries,
                                                       const RowsView& rows, float scale) {
  const int64_t count = std::max<int64_t>(1, scaled_keys(keys_, rows.count()) / layout_.block);
  const BlockChoice choice = method_ == BlockMethod::oracle
                                 ? oracle_blocks(context, queries, rows, scale, layout_, count)
                                 : mean_pool_blocks(context, queries, rows, layout_, count);
  std::vector<LabelledPlan> result;
  result.push_back({std::string(name()), block_plan(queries, rows, layout_, choice)});
  return result;
}

}  // namespace kinora
