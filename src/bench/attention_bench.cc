#include "bench/attention_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "attention/cuda/block_plan_cuda.h"
#include "attention/cuda/runner_cuda.h"
#include "attention/policies/pattern_attention.h"
#include "attention/policies/policy.h"
#include "attention/policies/sparse_policy.h"
#include "attention/report.h"
#include "base/error.h"
#include "base/gpu.h"
#include "base/random.h"
#include "ops/rope.h"

namespace kinora::cli {
namespace {

constexpr double rope_base = 1e6;
constexpr int64_t chunk_tokens = 32768;

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
  for (int i = 0; i <= repeats; ++i) {
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
// random place; `shared`: the same for all heads of a kv head.
cuda_attention::DeviceBlocks random_blocks(const Context& context, const AttentionShape& shape,
                                           const BlockLayout& layout, int64_t tokens, int64_t step,
                                           bool shared, Random& random) {
  const int64_t tiles = layout.tiles(tokens);
  const int64_t most = std::max<int64_t>(1, tokens / layout.block / step);
  Tensor blocks = Tensor::zeros(DType::i32, {shape.heads, tiles, most});
  Tensor counts = Tensor::zeros(DType::i32, {shape.heads, tiles});
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t list = 0; list < shape.heads * tiles; ++list) {
    const int64_t seen = list % tiles * layout.tile / layout.block;
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
  const auto kv_heads = static_cast<int>(rows.keys.size(1));
  const int group = static_cast<int>(queries.queries.size(1)) / kv_heads;
  for (int64_t begin = 0; begin < queries.count(); begin += 128) {
    for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
      builder.begin_queries();
      const int64_t end = std::min(begin + 128, queries.count());
      builder.add_query_range(begin, end);
      builder.begin_segments();
      fill(builder, begin);
      builder.add_rows(begin, end - begin);
      builder.add_tile(kv_head * group, group);
    }
  }
  return builder.take();
}

}  // namespace

HeadChoice parse_mixed_head(const std::string& item, int32_t frame_stride) {
  const size_t slash = item.find('/');
  if (slash == std::string::npos) {
    throw Error(ErrorKind::usage, "a head of a mix is BOUNDARY/PATTERN, such as both/a-shape; '" +
                                      item + "' has no boundary");
  }
  const std::string name = item.substr(0, slash);
  const auto words = boundary_words();
  const auto word = std::ranges::find(words, name, &std::pair<std::string, Boundary>::first);
  if (word == words.end()) {
    throw Error(ErrorKind::usage, "'" + item + "': no modality boundary is called '" + name +
                                      "'; there are none, key, query and both");
  }
  HeadChoice choice;
  choice.boundary = word->second;
  choice.patterns.push_back({{}, {}, parse_pattern(item.substr(slash + 1), frame_stride)});
  return choice;
}

AttentionInput::AttentionInput(const Context& context, const AttentionShape& shape, int64_t tokens,
                               int64_t frame_tokens, int64_t text_tokens) {
  const int64_t heads = shape.heads, kv_heads = shape.kv_heads, d = shape.head_size;
  const Device device = context.device;
  queries_ = Tensor(DType::bf16, {tokens, heads, d}, device);
  keys_ = Tensor(DType::bf16, {tokens, kv_heads, d}, device);
  values_ = Tensor(DType::bf16, {tokens, kv_heads, d}, device);
  const std::vector<double> frequencies = rope_inverse_frequencies(d, rope_base);
  // The frequency that comes round once a frame.
  int64_t frame_pair = 0;
  for (int64_t i = 1; i < d / 2; ++i) {
    const double wanted = 2 * M_PI / static_cast<double>(frame_tokens);
    if (std::abs(std::log(frequencies[static_cast<size_t>(i)] / wanted)) <
        std::abs(std::log(frequencies[static_cast<size_t>(frame_pair)] / wanted))) {
      frame_pair = i;
    }
  }
  const int64_t width = (heads + 2 * kv_heads) * d;
  const int64_t chunk = std::min(tokens, chunk_tokens);
  Random random(1);
  std::vector<bf16> host(static_cast<size_t>(chunk * width));
  std::vector<float> noise(1 << 16);
  for (float& value : noise) value = static_cast<float>(random.normal());
  for (int64_t token = 0; token < chunk; ++token) {
    bf16* row = host.data() + token * width;
    const bool stands_out = random.below(1000) == 0;
    const size_t offset = static_cast<size_t>(random.below(1 << 16));
    for (int64_t i = 0; i < width; ++i) {
      const int64_t head = i / d, pair = i % d % (d / 2);
      const bool first_half = i % d < d / 2;
      float value = noise[(offset + static_cast<size_t>(i) * 31) & 0xffff];
      if (head < heads && first_half) {
        // Queries: near keys, the frame before, keys that stand out, or some of each.
        const int64_t kind = head % 4;
        if ((kind == 0 || kind == 3) && pair < 12) value += 4;
        if ((kind == 1 || kind == 3) && std::abs(pair - frame_pair) < 2) value += 16;
        if ((kind == 2 || kind == 3) && pair >= d / 2 - 4) value += 6;
      } else if (head < heads + kv_heads && first_half) {
        if (pair < d / 2 - 4) value += 2;
        if (pair >= d / 2 - 4 && stands_out) value += 8;
      }
      row[i] = bf16::from_float(value);
    }
  }
  Tensor qkv(DType::bf16, {chunk, width}, device);
  copy_bytes(qkv.view().raw(), device, host.data(), Device::cpu(), host.size() * sizeof(bf16));
  std::vector<int64_t> positions;
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t count = std::min(chunk, tokens - begin);
    positions.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) positions[static_cast<size_t>(i)] = begin + i;
    rope_split(context, rope_table(context, frequencies, positions), qkv.view().rows(0, count),
               queries_.view().rows(begin, count), keys_.view().rows(begin, count),
               values_.view().rows(begin, count));
  }
  synchronize(context);
  ordinals_.resize(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ordinals_.size(); ++i) ordinals_[i] = static_cast<int32_t>(i);
  for (int64_t i = 0; i < tokens; ++i) {
    modalities_.push_back(i % frame_tokens < text_tokens ? Modality::text : Modality::video);
  }
}

QueryView AttentionInput::queries() const { return {queries_.view(), ordinals_, modalities_}; }
RowSet AttentionInput::rows() const {
  return {keys_.view(), values_.view(), ordinals_, modalities_};
}
float AttentionInput::scale() const { return 1 / std::sqrt(static_cast<float>(queries_.size(2))); }

void bench_attention(const Context& context, const AttentionBenchOptions& options, int64_t tokens,
                     const std::function<void(const AttentionFigure&)>& found) {
  const AttentionShape& shape = options.shape;
  const AttentionInput input(context, shape, tokens, options.frame_tokens, options.text_tokens);
  const QueryView queries = input.queries();
  const RowSet rows = input.rows();
  const float scale = input.scale();
  Tensor out(DType::bf16, queries.queries.shape(), context.device);
  const double all = static_cast<double>(dense_pairs(shape.heads, queries, rows));
  AttentionLaunches launches;
  const RunOptions run{.dtype = options.dtype, .launches = &launches};
  const auto report = [&](const std::string& name, const Timed& timed, double index, double pairs) {
    found({tokens,
           name,
           timed.seconds,
           index,
           timed.host,
           pairs,
           pairs / all,
           {},
           std::exchange(launches, {})});
  };
  DenseAttention dense;
  report("dense",
         time_call(context, options.repeats,
                   [&] { dense.attend(context, 0, queries, rows, scale, out); }),
         0, all);

  Random random(2);
  const auto blocks_of = [&](int64_t step, bool shared) {
    const BlockLayout layout{.tile = 128, .block = 64, .sink = 0, .window = 0};
    // Lists of a million tokens are only made where they are short.
    const int64_t entries = tokens / 128 * shape.heads * (tokens / 64 / step);
    if (!options.lists || entries > (int64_t{1} << 29)) return;
    const auto blocks = random_blocks(context, shape, layout, tokens, step, shared, random);
    const auto make = [&] {
      return cuda_attention::block_plan(context, queries, rows, layout, blocks, out);
    };
    const double pairs = pairs_of(context, make());
    const double index = time_call(context, options.repeats, [&] { make(); }).seconds;
    const Timed timed = time_call(context, options.repeats, [&] {
      cuda_attention::run_plan(context, make(), queries, rows, scale, out, run);
    });
    report(fmt::format("blocks {} %{}", 100 / step, shared ? "" : ", each head its own"), timed,
           index, pairs);
  };
  for (const int64_t step : {1, 2, 4, 10, 20}) blocks_of(step, true);
  blocks_of(10, false);
  // Lists of the host: made and sent once, then run.
  const auto rows_of_host = [&](const std::string& name, const Plan& plan) {
    const auto pairs = static_cast<double>(attended_pairs(plan, queries, rows));
    const cuda_attention::DevicePlan device =
        cuda_attention::device_plan(context, plan, queries, rows, out);
    const Timed timed = time_call(context, options.repeats, [&] {
      cuda_attention::run_plan(context, device, queries, rows, scale, out, run);
    });
    report(name, timed, 0, pairs);
  };
  if (options.lists && tokens <= 131072) {
    rows_of_host("every 8th key", row_plan(queries, rows, [&](PlanBuilder& builder, int64_t begin) {
                   builder.add_rows(random.below(8), begin / 8, 8);
                 }));
    rows_of_host("gathered, 1 in 8",
                 row_plan(queries, rows, [&](PlanBuilder& builder, int64_t begin) {
                   std::vector<int32_t> some;
                   for (int64_t at = 0; at < begin; at += 8) {
                     some.push_back(static_cast<int32_t>(at + random.below(8)));
                   }
                   builder.add_gathered(some);
                 }));
  }

  AttentionOptions policy_options;
  policy_options.sparse.dense_below = options.dense_below;
  policy_options.sparse.dtype = options.dtype;
  policy_options.frame_stride = static_cast<int32_t>(options.frame_tokens);
  const auto time_policy = [&](const std::string& name, std::unique_ptr<Attention> policy) {
    const Timed timed = time_call(context, options.repeats,
                                  [&] { policy->attend(context, 0, queries, rows, scale, out); });
    AttentionFigure figure{tokens, name, timed.seconds, 0, timed.host, all, 1, {}, {}};
    if (const AttentionReport* told = policy->report()) {
      const auto calls = static_cast<double>(told->calls);
      figure.index_seconds = told->index_seconds / calls;
      figure.pairs = static_cast<double>(told->pairs) / calls;
      figure.share = figure.pairs / all;
      if (told->parts.empty()) {  // dense: it computes all and keeps no time
        figure.pairs = all;
        figure.share = 1;
      }
      figure.launches = told->launches;
      for (const auto& [label, part] : told->parts) {
        figure.parts.emplace_back(label, part.seconds / calls);
      }
    }
    found(figure);
  };
  if (options.dtype == AttentionDtype::fp8) {
    time_policy("dense", make_attention("dense", policy_options));
  }
  for (const std::string& name : options.policies) {
    time_policy(name, make_attention(name, policy_options));
  }
  if (options.mix.empty()) return;
  auto table = std::make_shared<HeadTable>();
  table->shape = {"", 1, static_cast<int>(shape.heads), static_cast<int>(shape.kv_heads),
                  static_cast<int>(shape.head_size)};
  for (int64_t head = 0; head < shape.heads; ++head) {
    const std::string& item = options.mix[static_cast<size_t>(head) % options.mix.size()];
    table->heads.emplace_back(parse_mixed_head(item, policy_options.frame_stride));
  }
  time_policy("mix", std::make_unique<PatternAttention>("mix", table, policy_options.sparse));
}

}  // namespace kinora::cli
