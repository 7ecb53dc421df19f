#include "attention/plan/block_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "attention/policies/dense.h"
#include "attention/policies/pattern.h"
#include "attention/runner.h"
#include "ops/matmul.h"
#include "ops/packed_rows.h"
#include "ops/rows.h"

namespace kinora {
namespace {

// Keeps the weight of every block for every query and head of a tile.
class ShareObserver final : public BlockObserver {
 public:
  ShareObserver(int64_t block, int64_t heads, int64_t queries, int64_t blocks)
      : block_(block),
        heads_(heads),
        blocks_(blocks),
        scores_(static_cast<size_t>(queries * heads * blocks),
                -std::numeric_limits<float>::infinity()) {}

  int64_t block_size() const override { return block_; }
  void observe(int64_t block, int64_t count, const int32_t* query, const int32_t* head,
               const float* score) override {
    for (int64_t i = 0; i < count; ++i) {
      scores_[static_cast<size_t>((query[i] * heads_ + head[i]) * blocks_ + block)] = score[i];
    }
  }
  float score(int64_t query, int64_t head, int64_t block) const {
    return scores_[static_cast<size_t>((query * heads_ + head) * blocks_ + block)];
  }

 private:
  int64_t block_, heads_, blocks_;
  std::vector<float> scores_;
};

// First and one past the last block that a tile may choose.
struct Choosable {
  int64_t begin = 0;
  int64_t end = 0;
};

Choosable choosable(const QueryView& queries, const RowSet& rows, const BlockLayout& layout,
                    int64_t tile) {
  return {layout.sink_end(rows.count()) / layout.block,
          layout.window_begin(queries, rows, tile) / layout.block};
}

}  // namespace

int64_t scaled_keys(int64_t keys, int64_t length) {
  const double share =
      std::min(1.0, static_cast<double>(length) / static_cast<double>(nominal_length));
  return static_cast<int64_t>(share * static_cast<double>(keys));
}

int64_t BlockLayout::sink_end(int64_t rows) const {
  return std::min(rows, (sink + block - 1) / block * block);
}

int64_t BlockLayout::window_begin(const QueryView& queries, const RowSet& rows,
                                  int64_t tile_index) const {
  const int32_t first = queries.ordinals[static_cast<size_t>(tile_index * tile)];
  const int64_t seen = visible_rows(rows.ordinals, first);
  return std::max<int64_t>(0, seen - window) / block * block;
}

void add_block_tiles(PlanBuilder& builder, const QueryView& queries, const RowSet& rows,
                     const BlockLayout& layout, int head,
                     const std::function<std::span<const int32_t>(int64_t)>& choose) {
  const int64_t sink_end = layout.sink_end(rows.count());
  for (int64_t tile = 0; tile < layout.tiles(queries.count()); ++tile) {
    builder.begin_queries();
    builder.add_query_range(tile * layout.tile,
                            std::min((tile + 1) * layout.tile, queries.count()));
    builder.begin_segments();
    const int64_t window_begin = layout.window_begin(queries, rows, tile);
    // Adjacent pieces grow into one segment, so that choosing everything reads as dense does.
    int64_t begin = 0;
    int64_t end = std::min(sink_end, window_begin);
    const auto flush_to = [&](int64_t next_begin, int64_t next_end) {
      if (next_begin > end) {
        if (begin < end) builder.add_rows(begin, end - begin);
        begin = next_begin;
      }
      end = std::max(end, next_end);
    };
    for (const int32_t block : choose(tile)) {
      const int64_t row = block * layout.block;
      if (row < sink_end || row >= window_begin) continue;
      flush_to(row, row + layout.block);
    }
    flush_to(window_begin, rows.count());
    builder.add_rows(begin, end - begin);
    builder.add_tile(head);
  }
}

Plan block_plan(const QueryView& queries, const RowSet& rows, const BlockLayout& layout,
                const BlockChoice& choice) {
  PlanBuilder builder(queries, rows);
  const int64_t tiles = layout.tiles(queries.count());
  for (int64_t head = 0; head < queries.queries.size(1); ++head) {
    add_block_tiles(builder, queries, rows, layout, static_cast<int>(head), [&](int64_t tile) {
      return std::span<const int32_t>(choice[static_cast<size_t>(head * tiles + tile)]);
    });
  }
  return builder.take();
}

std::vector<int32_t> strongest_blocks(std::vector<BlockScore> scores, int64_t count) {
  const auto stronger = [](const BlockScore& a, const BlockScore& b) {
    return a.score != b.score ? a.score > b.score : a.block < b.block;
  };
  if (count < static_cast<int64_t>(scores.size())) {
    std::nth_element(scores.begin(), scores.begin() + count, scores.end(), stronger);
    scores.resize(static_cast<size_t>(count));
  }
  std::vector<int32_t> blocks;
  for (const BlockScore& score : scores) blocks.push_back(score.block);
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

BlockChoice oracle_blocks(const Context& context, const QueryView& queries, const RowSet& rows,
                          float scale, const BlockLayout& layout, int64_t count) {
  const int64_t heads = queries.queries.size(1);
  const int64_t blocks = (rows.count() + layout.block - 1) / layout.block;
  const int64_t tiles = layout.tiles(queries.count());
  BlockChoice choice(static_cast<size_t>(heads * tiles));
  // A tile at a time, so that scores of all queries and blocks never exist at once.
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t begin = tile * layout.tile;
    const int64_t size = std::min(layout.tile, queries.count() - begin);
    const QueryView part = slice(queries, begin, size);
    ShareObserver observer(layout.block, heads, size, blocks);
    Tensor out(DType::f32, part.queries.shape());
    std::vector<float> max(static_cast<size_t>(size * heads)), sum(max.size());
    run_plan(context, dense_plan(part, rows), part, rows, scale, out,
             {.state = {max.data(), sum.data()}, .observer = &observer});
    const Choosable range = choosable(queries, rows, layout, tile);
    for (int64_t head = 0; head < heads; ++head) {
      std::vector<BlockScore> scores;
      for (int64_t block = range.begin; block < range.end; ++block) {
        double share = 0;
        for (int64_t query = 0; query < size; ++query) {
          const auto at = static_cast<size_t>(query * heads + head);
          const double total = static_cast<double>(max[at]) * std::numbers::log2e +
                               std::log2(static_cast<double>(sum[at]));
          share += std::exp2(static_cast<double>(observer.score(query, head, block)) - total);
        }
        scores.push_back({static_cast<int32_t>(block), static_cast<float>(share)});
      }
      choice[static_cast<size_t>(head * tiles + tile)] = strongest_blocks(std::move(scores), count);
    }
  }
  return choice;
}

BlockChoice mean_pool_blocks(const Context& context, const QueryView& queries, const RowSet& rows,
                             const BlockLayout& layout, int64_t count) {
  const ConstTensorView& q = queries.queries;
  Tensor room;
  const ConstTensorView k = plain_rows(context, rows.keys, room);
  const int64_t heads = q.size(1), kv_heads = k.size(1), head_size = q.size(2);
  const int64_t blocks = (rows.count() + layout.block - 1) / layout.block;
  const int64_t tiles = layout.tiles(queries.count());
  BlockChoice choice(static_cast<size_t>(heads * tiles));
  for (int64_t head = 0; head < heads; ++head) {
    Tensor mean_query = Tensor::zeros(DType::f32, {tiles, head_size});
    for (int64_t i = 0; i < queries.count(); ++i) {
      const float* from = q.row<float>(i) + head * q.stride(1);
      float* to = mean_query.data<float>() + i / layout.tile * head_size;
      const auto size = static_cast<float>(
          std::min(layout.tile, queries.count() - i / layout.tile * layout.tile));
      for (int64_t c = 0; c < head_size; ++c) to[c] += from[c] / size;
    }
    const int64_t kv_head = head / (heads / kv_heads);
    Tensor mean_key = Tensor::zeros(DType::f32, {blocks, head_size});
    for (int64_t row = 0; row < rows.count(); ++row) {
      float* to = mean_key.data<float>() + row / layout.block * head_size;
      const auto size = static_cast<float>(
          std::min(layout.block, rows.count() - row / layout.block * layout.block));
      const int64_t at = row * k.stride(0) + kv_head * k.stride(1);
      for (int64_t c = 0; c < head_size; ++c) {
        with_float_type(k.dtype(),
                        [&]<typename T>(T) { to[c] += widen(k.data<T>()[at + c]) / size; });
      }
    }
    Tensor scores(DType::f32, {tiles, blocks});
    matmul(context, mean_query, mean_key, scores);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const Choosable range = choosable(queries, rows, layout, tile);
      std::vector<BlockScore> list;
      for (int64_t block = range.begin; block < range.end; ++block) {
        list.push_back({static_cast<int32_t>(block), scores.data<float>()[tile * blocks + block]});
      }
      choice[static_cast<size_t>(head * tiles + tile)] = strongest_blocks(std::move(list), count);
    }
  }
  return choice;
}

}  // namespace kinora
