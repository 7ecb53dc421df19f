#include "attention/policies/momo.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "attention/cuda/block_plan_cuda.h"
#include "attention/cuda/runner_cuda.h"
#include "attention/policies/block_settings.h"
#include "attention/policies/dense.h"
#include "attention/runner.h"
#include "base/error.h"

namespace kinora {
namespace {

// Feeds every measured query's block scores to its own top-k.
class TopKObserver final : public BlockObserver {
 public:
  TopKObserver(const MomoOptions& options, const QueryView& queries,
               std::span<const int32_t> places, const RowSet& rows, int64_t heads)
      : block_(options.layout.block),
        heads_(heads),
        first_(options.layout.sink_end(rows.count()) / block_) {
    top_.reserve(places.size() * static_cast<size_t>(heads));
    for (const int32_t place : places) {
      const int64_t end =
          options.layout.window_begin(queries, rows, place / options.layout.tile) / block_;
      ends_.push_back(end);
      for (int64_t head = 0; head < heads; ++head) {
        top_.emplace_back(options.top_k, options.k, options.k_exact,
                          std::max<int64_t>(0, end - first_));
      }
    }
  }

  int64_t block_size() const override { return block_; }
  void observe(int64_t block, int64_t count, const int32_t* query, const int32_t* head,
               const float* score) override {
    if (block < first_) return;
    for (int64_t i = 0; i < count; ++i) {
      // Sink and window are read anyway; they must not use up places.
      if (block >= ends_[static_cast<size_t>(query[i])]) continue;
      top_[static_cast<size_t>(query[i] * heads_ + head[i])].offer(static_cast<int32_t>(block),
                                                                   score[i]);
    }
  }
  std::vector<BlockScore> take(int64_t sample, int64_t head) const {
    return top_[static_cast<size_t>(sample * heads_ + head)].take();
  }

 private:
  int64_t block_;
  int64_t heads_;
  int64_t first_;                // block after the sink
  std::vector<int64_t> ends_;    // per sample: first block of its tile's window
  std::vector<OnlineTopK> top_;  // [samples, heads]
};

// Dense attention of few queries: tiles so small that every thread gets some. A query's result does
// not depend on its tile.
Plan measuring_plan(const Context& context, const QueryView& queries, const RowSet& rows) {
  const int64_t share =
      queries.count() * queries.queries.size(1) / (2 * context.threads->threads());
  return dense_plan(queries, rows, std::clamp<int64_t>(share, 48, 256));
}

}  // namespace

int64_t spread_stride(int64_t stride, int64_t frame_tokens) {
  while (std::gcd(stride, std::max<int64_t>(1, frame_tokens)) != 1) ++stride;
  return stride;
}

void check(const MomoOptions& options) {
  const auto refuse = [](const std::string& what) { throw Error(ErrorKind::usage, what); };
  const BlockLayout& layout = options.layout;
  if (options.query_stride < 1 || layout.tile < options.query_stride) {
    refuse(fmt::format("a tile of {} queries cannot be measured at every {}th", layout.tile,
                       options.query_stride));
  }
  if (layout.block != 32 && layout.block != 64) {
    refuse(fmt::format("a block of {} keys; it must be 32 or 64", layout.block));
  }
  if (options.k < 1 || options.k_exact < 0 || options.k_exact > options.k) {
    refuse(fmt::format("{} blocks of which {} exactly", options.k, options.k_exact));
  }
  if (options.sparse_keys < 0 || layout.sink < 0 || layout.window < 0) {
    refuse("a number of keys below zero");
  }
}

BlockChoice union_and_trim(const Context& context, const std::vector<std::vector<BlockScore>>& kept,
                           std::span<const int32_t> places, int64_t heads, int64_t tile_size,
                           int64_t tiles, int64_t blocks_kept, BlockRank rank) {
  BlockChoice choice(static_cast<size_t>(heads * tiles));
  context.threads->parallel_for(heads * tiles, 1, [&](int64_t begin, int64_t finish) {
    std::vector<BlockScore> all, united;
    for (int64_t at = begin; at < finish; ++at) {
      const int64_t head = at / tiles, tile = at % tiles;
      all.clear();
      united.clear();
      const auto first_from = [&](int64_t query) {
        return std::lower_bound(places.begin(), places.end(), query) - places.begin();
      };
      const int64_t end = first_from((tile + 1) * tile_size);
      for (int64_t sample = first_from(tile * tile_size); sample < end; ++sample) {
        const auto& list = kept[static_cast<size_t>(sample * heads + head)];
        all.insert(all.end(), list.begin(), list.end());
      }
      std::sort(all.begin(), all.end(),
                [](const BlockScore& a, const BlockScore& b) { return a.block < b.block; });
      for (size_t i = 0; i < all.size();) {
        const size_t first = i;
        double sum = 0;
        for (; i < all.size() && all[i].block == all[first].block; ++i) {
          const auto score = static_cast<double>(all[i].score);
          sum += rank == BlockRank::mass ? std::exp2(score) : score;
        }
        if (rank == BlockRank::mean) sum /= static_cast<double>(i - first);
        united.push_back({all[first].block, static_cast<float>(sum)});
      }
      choice[static_cast<size_t>(at)] = strongest_blocks(united, blocks_kept);
    }
  });
  return choice;
}

MomoAttention::MomoAttention(MomoOptions momo, SparseOptions options)
    : SparseAttention(std::move(options)), momo_(momo) {
  check(momo_);
  // With all of them exact a hybrid is the exact buffer, whose result the tree finds sooner.
  if (momo_.top_k == TopKMethod::hybrid && momo_.k_exact == momo_.k) {
    momo_.top_k = TopKMethod::tournament;
  }
}

BlockChoice MomoAttention::measure(const Context& context, const QueryView& queries,
                                   const SampledQueries& sampled, const RowSet& rows, float scale,
                                   TensorView exact) const {
  const QueryView view = sampled.view();
  const int64_t samples = view.count(), heads = queries.queries.size(1);
  TopKObserver observer(momo_, queries, sampled.places(), rows, heads);
  std::vector<float> max(static_cast<size_t>(samples * heads)), sum(max.size());
  run_plan(context, measuring_plan(context, view, rows), view, rows, scale, exact,
           {.state = {max.data(), sum.data()}, .observer = &observer});

  std::vector<std::vector<BlockScore>> kept(max.size());
  context.threads->parallel_for(samples * heads, 8, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const auto i = static_cast<size_t>(at);
      kept[i] = observer.take(at / heads, at % heads);
      // Scores of different queries are compared in the trim, so each is put on the scale of its
      // own query's total.
      const float total = max[i] * std::numbers::log2e_v<float> + std::log2(sum[i]);
      for (BlockScore& score : kept[i]) score.score -= total;
    }
  });
  const int64_t keys = scaled_keys(momo_.sparse_keys, length(rows));
  const int64_t blocks = rows.count() / momo_.layout.block + 1;
  return union_and_trim(context, kept, sampled.places(), heads, momo_.layout.tile,
                        momo_.layout.tiles(queries.count()),
                        momo_.trim ? std::max<int64_t>(1, keys / momo_.layout.block) : blocks,
                        momo_.rank);
}

std::vector<LabelledPlan> MomoAttention::sparse_plans(const Context& context, int,
                                                      const QueryView& queries, const RowSet& rows,
                                                      float scale) {
  const SampledQueries sampled(context, queries, momo_.query_stride);
  Tensor exact(DType::f32, sampled.view().queries.shape());
  const BlockChoice choice = measure(context, queries, sampled, rows, scale, exact);
  std::vector<LabelledPlan> result;
  result.push_back({"momo blocks", block_plan(queries, rows, momo_.layout, choice)});
  return result;
}

void MomoAttention::attend_sparsely(const Context& context, int, const QueryView& queries,
                                    const RowSet& rows, float scale, TensorView out) {
  const RunTimer watch;
  const SampledQueries sampled(context, queries, momo_.query_stride);
  const QueryView view = sampled.view();
  Tensor exact(DType::f32, view.queries.shape());
  const BlockChoice choice = measure(context, queries, sampled, rows, scale, exact);
  const int64_t heads = queries.queries.size(1);
  const int64_t pairs = dense_pairs(heads, view, rows);
  AttentionReport::Part& part = report_.parts["momo measure"];
  part.heads += heads;
  part.pairs += pairs;
  part.seconds += watch.seconds();
  report_.pairs += pairs;
  report_.run_seconds += watch.seconds();

  const RunTimer index_watch;
  std::vector<LabelledPlan> planned;
  planned.push_back({"momo blocks", block_plan(queries, rows, momo_.layout, choice)});
  report_.index_seconds += index_watch.seconds();
  run(context, std::move(planned), queries, rows, scale, out);
  if (momo_.delta) apply_delta(context, exact, sampled.places(), out);
}

std::optional<GpuWorkload> MomoAttention::gpu_workload(int, const QueryView&,
                                                       const RowSet& rows) const {
  if (!cuda_attention::can_choose(momo_)) return std::nullopt;
  const BlockLayout& layout = momo_.layout;
  GpuWorkload work;
  work.measured = 1 / static_cast<double>(momo_.query_stride);
  work.measures = 1;
  // Without trimming a tile may keep all that its measured queries chose.
  const int64_t chosen = momo_.trim ? scaled_keys(momo_.sparse_keys, length(rows))
                                    : momo_.k * layout.block * layout.tile / momo_.query_stride;
  work.keys = static_cast<double>(layout.sink + layout.window + layout.tile / 2 + chosen);
  return work;
}

void MomoAttention::attend_on_gpu(const Context& context, int layer, const QueryView& queries,
                                  const RowSet& rows, float scale, TensorView out) {
  if (!cuda_attention::can_choose(momo_)) {
    SparseAttention::attend_on_gpu(context, layer, queries, rows, scale, out);
    const int64_t stride = momo_.delta ? momo_.query_stride : 0;
    return correct_on_gpu(context, queries, rows, scale, stride, out);
  }
  const int64_t heads = queries.queries.size(1);
  const SampledQueries sampled(context, queries, momo_.query_stride);
  const QueryView view = sampled.view();
  gpu_work_.begin(context, "momo measure", heads);
  gpu_work_.planned(context);
  Tensor exact(out.dtype(), view.queries.shape(), context.device);
  const cuda_attention::DeviceBlocks chosen =
      cuda_attention::choose_blocks(context, queries, sampled, rows, scale, momo_,
                                    scaled_keys(momo_.sparse_keys, length(rows)), exact);
  gpu_work_.end(context, dense_pairs(heads, view, rows));
  gpu_work_.begin(context, "momo blocks", heads);
  const auto plan = cuda_attention::block_plan(context, queries, rows, momo_.layout, chosen, out);
  gpu_work_.planned(context);
  cuda_attention::run_plan(context, plan, queries, rows, scale, out, gpu_run());
  if (momo_.delta) apply_delta(context, exact, sampled.places(), out);
  gpu_work_.end(context);
  gpu_work_.counted(cuda_attention::count_pairs(context, plan));
}

AttentionPolicy momo_policy() {
  MomoOptions initial;
  initial.query_stride = 0;  // depends on the frames
  initial.k_exact = -1;      // all of them, however many
  std::vector<std::pair<std::string, TopKMethod>> methods;
  for (const TopKMethod method :
       {TopKMethod::exact, TopKMethod::tournament, TopKMethod::threshold, TopKMethod::hybrid}) {
    methods.emplace_back(top_k_name(method), method);
  }
  const std::vector<std::pair<std::string, BlockRank>> ranks = {{"mean", BlockRank::mean},
                                                                {"mass", BlockRank::mass}};
  Settings<MomoOptions> settings(initial);
  settings.include(block_layout_settings(), &MomoOptions::layout)
      .count_or("query-stride", &MomoOptions::query_stride, {1}, {"auto", 0},
                "every Nth token is measured; auto: 16, or the next number that shares no factor "
                "with the tokens of a frame")
      .count("k", &MomoOptions::k, {1}, "blocks that a measured token chooses")
      .count_or("exact", &MomoOptions::k_exact, {}, {"all", -1},
                "of these, how many the hybrid top-k finds exactly; a GPU's plans want all")
      .count("keys", &MomoOptions::sparse_keys, {},
             "keys that a tile keeps of what its measured tokens chose")
      .flag("trim", &MomoOptions::trim, "0: a tile keeps all that they chose")
      .choice("rank", &MomoOptions::rank, ranks,
              "a tile keeps blocks by their mean score, or by all the attention they got")
      .flag("delta", &MomoOptions::delta,
            "the error of a measured token is taken from those after it")
      .choice("top-k", &MomoOptions::top_k, methods, "how a measured token chooses");
  AttentionPolicy policy = sparse_policy(
      "momo", "blocks that sampled tokens find strongest, then a correction", settings,
      [](MomoOptions momo, const AttentionOptions& options) {
        if (momo.query_stride == 0) {
          momo.query_stride = spread_stride(MomoOptions().query_stride, options.frame_stride);
        }
        momo.k_exact = momo.k_exact < 0 ? momo.k : std::min(momo.k_exact, momo.k);
        SparseOptions sparse = options.sparse;
        sparse.delta_stride = 0;  // it has its own
        return std::make_unique<MomoAttention>(momo, sparse);
      });
  policy.runs_on_gpu = true;
  return policy;
}

}  // namespace kinora
