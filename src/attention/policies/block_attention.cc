#include "attention/policies/block_attention.h"

#include <fmt/core.h>

#include <algorithm>

#include "attention/policies/block_settings.h"
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
                                                       const QueryView& queries, const RowSet& rows,
                                                       float scale) {
  const int64_t count = std::max<int64_t>(1, scaled_keys(keys_, length(rows)) / layout_.block);
  const BlockChoice choice = method_ == BlockMethod::oracle
                                 ? oracle_blocks(context, queries, rows, scale, layout_, count)
                                 : mean_pool_blocks(context, queries, rows, layout_, count);
  std::vector<LabelledPlan> result;
  result.push_back({std::string(name()), block_plan(queries, rows, layout_, choice)});
  return result;
}

namespace {

struct BlockOptions {
  BlockLayout layout{};
  int64_t keys = 4096;
};

AttentionPolicy block_policy(std::string name, std::string summary, BlockMethod method) {
  Settings<BlockOptions> settings;
  settings.include(block_layout_settings(), &BlockOptions::layout)
      .count("keys", &BlockOptions::keys, {}, "keys that a tile chooses to read besides");
  return sparse_policy(std::move(name), std::move(summary), settings,
                       [method](const BlockOptions& own, const AttentionOptions& options) {
                         return std::make_unique<BlockAttention>(method, own.layout, own.keys,
                                                                 options.sparse);
                       });
}

}  // namespace

Settings<BlockLayout> block_layout_settings() {
  Settings<BlockLayout> settings;
  settings.count("tile", &BlockLayout::tile, {1}, "tokens that share their blocks")
      .choice("block", &BlockLayout::block,
              std::vector<std::pair<std::string, int64_t>>{{"32", 32}, {"64", 64}},
              "keys of a block")
      .count("sink", &BlockLayout::sink, {}, "first tokens, read by all")
      .count("window", &BlockLayout::window, {}, "tokens just before a tile, read by it");
  return settings;
}

AttentionPolicy mean_pool_policy() {
  return block_policy("mean-pool", "a yardstick: blocks chosen by their mean key",
                      BlockMethod::mean_pool);
}

AttentionPolicy oracle_policy() {
  return block_policy("oracle",
                      "a yardstick: blocks chosen by their true scores, slower than dense",
                      BlockMethod::oracle);
}

}  // namespace kinora
