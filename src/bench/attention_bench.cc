#include "bench/attention_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "attention/cuda/block_plan_cuda.h"
#include "attention/cuda/runner_cuda.h"
#include "attention/policies/dense.h"
#include "attention/policies/pattern_attention.h"
#include "attention/policies/policy.h"
#include "attention/policies/sparse_policy.h"
#include "attention/report.h"
#include "attention/search/sampled_attention.h"
#include "base/error.h"
#include "base/gpu.h"
#include "base/random.h"
#include "bench/head_mix.h"

namespace kinora::cli {
namespace {

constexpr double held_share = 0.95;  // the paper's

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Timed {
  double seconds = 0;
  double host = 0;
};

// Medians of some calls after one to warm up.
Timed time_call(const Context& context, int repeats, const std::function<void()>& call) {
  std::vector<Timed> all;
  const bool on_cpu = context.device.is_cpu();
  for (int i = 0; i <= repeats && on_cpu; ++i) {
    const auto start = Clock::now();
    call();
    if (i > 0) all.push_back({since(start), since(start)});
  }
  for (int i = 0; i <= repeats && !on_cpu; ++i) {
    synchronize(context);
    GpuEvent begin(context.device, true), end(context.device, true);
    const auto start = Clock::now();
    begin.record(context);
    call();
    end.record(context);
    const double host = since(start);
    if (i > 0) all.push_back({end.seconds_since(begin), host});
    synchronize(context);
  }
  std::sort(all.begin(), all.end(),
            [](const Timed& a, const Timed& b) { return a.seconds < b.seconds; });
  return all[all.size() / 2];
}

double pairs_of(const Context& context, const cuda_attention::DevicePlan& plan) {
  const Tensor counted = cuda_attention::count_pairs(context, plan).to(Device::cpu());
  return static_cast<double>(*reinterpret_cast<const int64_t*>(counted.view().raw()));
}

// Blocks of 64 keys that every tile of 128 queries reads besides its own, one of every `step` at a
// random place; `shared`: the same for all heads of a kv head. The queries are the last ones.
cuda_attention::DeviceBlocks random_blocks(const Context& context, const AttentionShape& shape,
                                           const BlockLayout& layout, int64_t queries, int64_t rows,
                                           int64_t step, bool shared, Random& random) {
  const int64_t tiles = layout.tiles(queries);
  const int64_t most = std::max<int64_t>(1, rows / layout.block / step);
  Tensor blocks = Tensor::zeros(DType::i32, {shape.heads, tiles, most});
  Tensor counts = Tensor::zeros(DType::i32, {shape.heads, tiles});
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t list = 0; list < shape.heads * tiles; ++list) {
    const int64_t seen = (rows - queries + list % tiles * layout.tile) / layout.block;
    const int64_t count = seen / step;
    int32_t* to = blocks.data<int32_t>() + list * most;
    if (shared && list / tiles % group > 0) {
      std::copy_n(to - tiles * most, count, to);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        to[i] = static_cast<int32_t>(i * step + random.below(step));
      }
    }
    counts.data<int32_t>()[list] = static_cast<int32_t>(count);
  }
  return {blocks.to(context.device), counts.to(context.device)};
}

// A tile of 128 queries and the heads of a kv head, what `fill` picks before it, and its own rows.
template <class Fill>
Plan row_plan(const QueryView& queries, const RowSet& rows, const Fill& fill) {
  PlanBuilder builder(queries, rows);
  const int64_t earlier = rows.count() - queries.count();
  const auto kv_heads = static_cast<int>(rows.keys.size(1));
  const int group = static_cast<int>(queries.queries.size(1)) / kv_heads;
  for (int64_t begin = 0; begin < queries.count(); begin += 128) {
    for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
      builder.begin_queries();
      const int64_t end = std::min(begin + 128, queries.count());
      builder.add_query_range(begin, end);
      builder.begin_segments();
      fill(builder, earlier + begin);
      builder.add_rows(earlier + begin, end - begin);
      builder.add_tile(kv_head * group, group);
    }
  }
  return builder.take();
}

QueryView last_queries(const QueryView& queries, int64_t count) {
  if (count == 0 || count >= queries.count()) return queries;
  return slice(queries, queries.count() - count, count);
}

// Everything that is measured on one input.
class AttentionBench {
 public:
  AttentionBench(const Context& context, const AttentionBenchOptions& options, int64_t tokens,
                 const VideoKeyOptions& keys, const AttentionListener& listener)
      : context_(context),
        options_(options),
        listener_(listener),
        input_(context, options.shape, tokens, keys),
        queries_(last_queries(input_.queries(), options.group)),
        rows_(input_.rows()),
        scale_(input_.scale()),
        out_(queries_.queries.dtype(), queries_.queries.shape(), context.device),
        all_pairs_(static_cast<double>(dense_pairs(options.shape.heads, queries_, rows_))) {
    policy_options_.sparse.dense_below = options.dense_below;
    policy_options_.sparse.dtype = options.dtype;
    policy_options_.frame_stride = static_cast<int32_t>(keys.frame_tokens);
    if (options.mass_rows == 0) return;
    sampled_ = sample_attention(context, queries_, rows_, scale_,
                                spread_places(queries_.count(), options.mass_rows), held_share);
    kept_ = Tensor(DType::f32, {2, queries_.count(), options.shape.heads}, context.device);
    if (listener.needed) listener.needed(sampled_.needed);
  }

  void run_dense() {
    AttentionFigure figure = figure_of(
        "dense", time([&] { kinora::run_dense(context_, queries_, rows_, scale_, out_); }), 0,
        all_pairs_);
    if (kept_.defined()) {
      kinora::run_dense(context_, queries_, rows_, scale_, out_, {.state = state()});
      figure.held = held_mass(context_, sampled_, state());
    }
    tell(figure);
  }

  void run_lists();
  void run_policy(const std::string& name) {
    tell(measure(name, *make_attention(name, policy_options_)));
  }
  // A table with an item for each head.
  AttentionFigure run_mix(const std::string& name, const std::vector<std::string>& items) {
    const AttentionShape& shape = options_.shape;
    const auto table =
        mixed_table({"", 1, static_cast<int>(shape.heads), static_cast<int>(shape.kv_heads),
                     static_cast<int>(shape.head_size)},
                    items, policy_options_.frame_stride);
    PatternAttention policy(name, table, policy_options_.sparse);
    const AttentionFigure figure = measure(name, policy);
    tell(figure);
    return figure;
  }

 private:
  Timed time(const std::function<void()>& call) const {
    return time_call(context_, options_.repeats, call);
  }
  AttentionFigure figure_of(const std::string& name, const Timed& timed, double index,
                            double pairs) {
    AttentionFigure figure{rows_.count(), name,  timed.seconds,     index,
                           timed.host,    pairs, pairs / all_pairs_};
    figure.launches = std::exchange(launches_, {});
    return figure;
  }
  RunOptions list_run() { return {.dtype = options_.dtype, .launches = &launches_}; }
  void tell(const AttentionFigure& figure) const {
    if (listener_.figure) listener_.figure(figure);
  }
  SoftmaxState state() {
    auto* max = reinterpret_cast<float*>(kept_.view().raw());
    return {max, max + kept_.size(1) * kept_.size(2)};
  }

  AttentionFigure measure(const std::string& name, Attention& policy) {
    const auto attend = [&] { policy.attend(context_, 0, queries_, rows_, scale_, out_); };
    const Timed timed = time(attend);
    AttentionFigure figure = figure_of(name, timed, 0, all_pairs_);
    if (const AttentionReport* told = policy.report()) {
      const auto calls = static_cast<double>(told->calls);
      figure.index_seconds = told->index_seconds / calls;
      figure.pairs = static_cast<double>(told->pairs) / calls;
      figure.share = figure.pairs / all_pairs_;
      if (told->parts.empty()) {  // dense: it computes all and keeps no time
        figure.pairs = all_pairs_;
        figure.share = 1;
      }
      figure.launches = told->launches;
      for (const auto& [label, part] : told->parts) {
        figure.parts.emplace_back(label, part.seconds / calls);
      }
    }
    // A policy without a planner reads everything.
    if (kept_.defined() && policy.planner() != nullptr) {
      policy.planner()->keep_state(state());
      attend();
      figure.held = held_mass(context_, sampled_, state());
    }
    return figure;
  }

  const Context& context_;
  const AttentionBenchOptions& options_;
  const AttentionListener& listener_;
  VideoKeys input_;
  QueryView queries_;
  RowSet rows_;
  float scale_;
  Tensor out_;
  double all_pairs_;
  AttentionOptions policy_options_;
  AttentionLaunches launches_;  // of lists, since the last figure
  SampledAttention sampled_;    // where mass is asked for
  Tensor kept_;                 // [2, tokens, heads]: what a call read
};

void AttentionBench::run_lists() {
  const AttentionShape& shape = options_.shape;
  const int64_t queries = queries_.count(), tokens = rows_.count();
  Random random(2);
  const auto blocks_of = [&](int64_t step, bool shared) {
    const BlockLayout layout{.tile = 128, .block = 64, .sink = 0, .window = 0};
    // Lists of a million tokens are only made where they are short.
    const int64_t entries = queries / 128 * shape.heads * (tokens / 64 / step);
    if (entries > (int64_t{1} << 29)) return;
    const auto blocks =
        random_blocks(context_, shape, layout, queries, tokens, step, shared, random);
    const auto make = [&] {
      return cuda_attention::block_plan(context_, queries_, rows_, layout, blocks, out_);
    };
    const double pairs = pairs_of(context_, make());
    const double index = time([&] { make(); }).seconds;
    const Timed timed = time([&] {
      cuda_attention::run_plan(context_, make(), queries_, rows_, scale_, out_, list_run());
    });
    tell(figure_of(fmt::format("blocks {} %{}", 100 / step, shared ? "" : ", each head its own"),
                   timed, index, pairs));
  };
  for (const int64_t step : {1, 2, 4, 10, 20}) blocks_of(step, true);
  blocks_of(10, false);
  if (tokens > 131072) return;
  // Lists of the host: made and sent once, then run.
  const auto rows_of_host = [&](const std::string& name, const Plan& plan) {
    const auto pairs = static_cast<double>(attended_pairs(plan, queries_, rows_));
    const cuda_attention::DevicePlan device =
        cuda_attention::device_plan(context_, plan, queries_, rows_, out_);
    const Timed timed = time([&] {
      cuda_attention::run_plan(context_, device, queries_, rows_, scale_, out_, list_run());
    });
    tell(figure_of(name, timed, 0, pairs));
  };
  rows_of_host("every 8th key", row_plan(queries_, rows_, [&](PlanBuilder& builder, int64_t begin) {
                 builder.add_rows(random.below(8), begin / 8, 8);
               }));
  rows_of_host("gathered, 1 in 8",
               row_plan(queries_, rows_, [&](PlanBuilder& builder, int64_t begin) {
                 std::vector<int32_t> some;
                 for (int64_t at = 0; at < begin; at += 8) {
                   some.push_back(static_cast<int32_t>(at + random.below(8)));
                 }
                 builder.add_gathered(some);
               }));
}

// All heads with each item of the mix, on keys of another seed.
std::vector<AttentionFigure> try_items(const Context& context, const AttentionBenchOptions& options,
                                       int64_t tokens) {
  VideoKeyOptions keys = options.keys;
  ++keys.seed;
  AttentionBenchOptions once = options;
  once.repeats = 1;
  const AttentionListener nobody;
  AttentionBench bench(context, once, tokens, keys, nobody);
  std::vector<AttentionFigure> figures;
  for (const std::string& item : options.mix) {
    const auto heads = static_cast<size_t>(options.shape.heads);
    figures.push_back(bench.run_mix(item, std::vector<std::string>(heads, item)));
  }
  return figures;
}

// The item of the mix that each head takes.
std::vector<std::string> choose_mix(const std::vector<AttentionFigure>& figures, double hold) {
  std::vector<std::string> chosen;
  for (size_t head = 0; head < figures[0].held.size(); ++head) {
    // Of two that hold too little the one that holds more is better, else the faster one.
    const auto better = [&](const AttentionFigure& a, const AttentionFigure& b) {
      const bool enough = a.held[head] >= hold;
      if (enough != (b.held[head] >= hold)) return enough;
      return enough ? a.seconds < b.seconds : a.held[head] > b.held[head];
    };
    chosen.push_back(std::ranges::min_element(figures, better)->name);
  }
  return chosen;
}

}  // namespace

void bench_attention(const Context& context, const AttentionBenchOptions& options, int64_t tokens,
                     const AttentionListener& listener) {
  AttentionBench bench(context, options, tokens, options.keys, listener);
  if (options.keys_only) return;
  bench.run_dense();
  if (options.lists && !context.device.is_cpu()) bench.run_lists();
  if (options.dtype == AttentionDtype::fp8) bench.run_policy("dense");
  for (const std::string& name : options.policies) bench.run_policy(name);
  if (options.mix.empty()) return;
  if (options.hold.empty()) {
    std::vector<std::string> mix;
    for (int64_t head = 0; head < options.shape.heads; ++head) {
      mix.push_back(options.mix[static_cast<size_t>(head) % options.mix.size()]);
    }
    bench.run_mix("mix", mix);
    return;
  }
  const std::vector<AttentionFigure> figures = try_items(context, options, tokens);
  for (const double hold : options.hold) {
    const std::vector<std::string> mix = choose_mix(figures, hold);
    if (listener.chosen) listener.chosen(hold, mix);
    bench.run_mix(fmt::format("mix to hold {:g} %", 100 * hold), mix);
  }
}

}  // namespace kinora::cli
