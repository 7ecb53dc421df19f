// Attention on a GPU as a ladder: dense, lists of all blocks, fewer and fewer blocks, strided and
// gathered keys; then decoding against the copy bandwidth measured in the same run. `run` also
// prints the times of PyTorch's kernels.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attention/cuda/decode/decode_cuda.h"
#include "attention/policies/dense.h"
#include "attention/runner.h"
#include "attention/window_attention.h"
#include "base/error.h"
#include "base/gpu.h"
#include "base/random.h"
#include "common/gpu_time.h"
#include "common/samples.h"

namespace kinora::bench {
namespace {

constexpr int64_t block = 128;

struct Settings {
  std::vector<int64_t> tokens{4096, 32768, 131072};
  std::vector<int64_t> contexts{1000, 25000, 131072};
  int64_t heads = 28;
  int64_t kv_heads = 4;
  int64_t head_size = 128;
  int repeats = 3;
  bool json = false;
};

// Normal bf16 values: a stretch of them again and again, which no kernel notices.
Tensor random_rows(Random& random, const Shape& shape, Device device) {
  constexpr int64_t stretch = (int64_t{1} << 20) + 61;
  std::vector<bf16> values(static_cast<size_t>(stretch));
  for (bf16& value : values) value = bf16::from_float(static_cast<float>(random.normal()));
  Tensor tensor(DType::bf16, shape, device);
  for (int64_t at = 0; at < tensor.elements(); at += stretch) {
    const auto count = static_cast<size_t>(std::min(stretch, tensor.elements() - at));
    copy_bytes(tensor.view().raw() + at * 2, device, values.data(), Device::cpu(), count * 2);
  }
  return tensor;
}

class Bench {
 public:
  Bench(const Context& context, const Settings& settings)
      : context_(context), settings_(settings) {}

  void ladder(int64_t tokens) {
    Random random(1);
    const Settings& s = settings_;
    const Tensor queries = random_rows(random, {tokens, s.heads, s.head_size}, context_.device);
    const Tensor keys = random_rows(random, {tokens, s.kv_heads, s.head_size}, context_.device);
    const Tensor values = random_rows(random, {tokens, s.kv_heads, s.head_size}, context_.device);
    Tensor out(DType::bf16, queries.shape(), context_.device);
    ordinals_.resize(static_cast<size_t>(tokens));
    for (size_t i = 0; i < ordinals_.size(); ++i) ordinals_[i] = static_cast<int32_t>(i);
    const QueryView query_view{queries.view(), ordinals_, {}};
    const RowSet rows{keys.view(), values.view(), ordinals_, {}};
    const float scale = 0.0883883f;

    DenseAttention dense;
    const double half = static_cast<double>(tokens) * static_cast<double>(tokens) / 2;
    report(tokens, "dense", half * static_cast<double>(s.heads),
           [&] { dense.attend(context_, 0, query_view, rows, scale, out); });
    const auto run = [&](const std::string& name, const Plan& plan) {
      const auto pairs = static_cast<double>(attended_pairs(plan, query_view, rows));
      report(tokens, name, pairs, [&] { run_plan(context_, plan, query_view, rows, scale, out); });
    };
    for (const int percent : {100, 50, 25, 10, 5}) {
      run(fmt::format("blocks {} %", percent),
          make_plan(query_view, rows, [&](PlanBuilder& builder, int64_t begin) {
            for (int64_t at = 0; at < begin; at += block) {
              if (random.below(100) < percent) builder.add_rows(at, block);
            }
          }));
    }
    run("every 8th key", make_plan(query_view, rows, [&](PlanBuilder& builder, int64_t begin) {
          builder.add_rows(random.below(8), begin / 8, 8);
        }));
    run("gathered, 1 in 8", make_plan(query_view, rows, [&](PlanBuilder& builder, int64_t begin) {
          std::vector<int32_t> some;
          for (int64_t at = 0; at < begin; at += 8) {
            some.push_back(static_cast<int32_t>(at + random.below(8)));
          }
          builder.add_gathered(some);
        }));
  }

  // Qwen2.5-VL's tower on pictures of 448 × 448: 16 heads of 80, windows of 64 tokens or all 1024.
  void vision(int64_t pictures, int64_t window) {
    Random random(3);
    constexpr int64_t heads = 16, head_size = 80, picture = 1024, row = heads * head_size;
    const int64_t tokens = pictures * picture;
    const Tensor qkv = random_rows(random, {tokens, 3 * row}, context_.device);
    Tensor out(DType::bf16, {tokens, heads, head_size}, context_.device);
    std::vector<int32_t> offsets;
    for (int64_t at = 0; at <= tokens; at += window) offsets.push_back(static_cast<int32_t>(at));
    const auto slice = [&](int64_t part) {
      return ConstTensorView(qkv.view().raw() + part * row * 2, DType::bf16,
                             {tokens, heads, head_size}, {3 * row, head_size, 1}, context_.device);
    };
    const double seconds = gpu_seconds(context_, settings_.repeats + 4, [&] {
      attend_windows(context_, slice(0), slice(1), slice(2), offsets, 0.1118f, out);
    });
    const double rate = 4.0 * static_cast<double>(row * tokens * window) / seconds;
    const double bytes = 8.0 * static_cast<double>(row * tokens) / seconds;
    add({{"kind", "vision"},
         {"pictures", pictures},
         {"window", window},
         {"ms", seconds * 1e3},
         {"tflop_s", rate * 1e-12},
         {"gb_s", bytes * 1e-9}},
        fmt::format(
            "vision  {:4} pictures, windows of {:4} {:8.3f} ms {:7.1f} TFLOP/s {:6.0f} GB/s",
            pictures, window, seconds * 1e3, rate * 1e-12, bytes * 1e-9));
  }

  // New tokens of each of some sequences that have this many rows.
  void decode(int64_t sequences, int64_t rows, int64_t tokens, double bandwidth) {
    Random random(2);
    const Settings& s = settings_;
    const int64_t row_bytes = s.kv_heads * s.head_size * 2;
    // Several layers in turn, more than the caches hold.
    const int64_t layers =
        std::clamp<int64_t>((int64_t{512} << 20) / (sequences * rows * row_bytes * 2), 2, 28);
    std::vector<Tensor> memory;
    std::vector<DeviceSequence> told;
    for (int64_t i = 0; i < layers * sequences; ++i) {
      memory.push_back(random_rows(random, {rows, s.kv_heads, s.head_size}, context_.device));
      memory.push_back(random_rows(random, {rows, s.kv_heads, s.head_size}, context_.device));
      DeviceSequence sequence;
      sequence.sets[0].keys = memory[memory.size() - 2].view().raw();
      sequence.sets[0].values = memory.back().view().raw();
      sequence.sets[0].count = rows;
      sequence.first_token = static_cast<int32_t>(i % sequences * tokens);
      sequence.tokens = static_cast<int32_t>(tokens);
      told.push_back(sequence);
    }
    const Tensor table = upload(told.data(), told.size() * sizeof(DeviceSequence));
    std::vector<uint64_t> chains;
    for (int64_t i = 0; i < sequences * tokens; ++i) {
      chains.push_back(~uint64_t{0} >> (63 - i % tokens));
    }
    const Tensor masks = upload(chains.data(), chains.size() * sizeof(uint64_t));
    const Tensor queries =
        random_rows(random, {sequences * tokens, s.heads, s.head_size}, context_.device);
    Tensor out(DType::bf16, queries.shape(), context_.device);
    DecodeAttention work;
    work.queries = queries.view();
    work.sequence_count = static_cast<int>(sequences);
    work.most_tokens_per_sequence = static_cast<int>(tokens);
    work.kv_heads = static_cast<int>(s.kv_heads);
    work.splits = decode_splits(context_, work.kv_heads, sequences * rows);
    work.scale = 0.0883883f;
    work.out = out;
    work.masks = reinterpret_cast<const uint64_t*>(masks.view().raw());
    const auto bytes = static_cast<int64_t>(decode_scratch_bytes(context_, work));
    Tensor scratch = Tensor::zeros(DType::u8, {bytes}, context_.device);
    work.scratch = scratch.view().raw();
    const GpuStream stream(context_.device);
    Context streamed = context_;
    streamed.stream = stream.handle();
    constexpr int calls = 28;
    const GpuGraph graph = GpuGraph::record(streamed, [&](const Context& inside) {
      for (int i = 0; i < calls; ++i) {
        work.sequences =
            reinterpret_cast<const DeviceSequence*>(table.view().raw()) + i % layers * sequences;
        decode_attention(inside, work);
      }
    });
    const double seconds =
        gpu_seconds(streamed, settings_.repeats + 4, [&] { graph.launch(streamed); }) / calls;
    const double read = static_cast<double>(sequences * rows * row_bytes * 2);
    const double rate = read / seconds;
    const double products = 4 * static_cast<double>(s.heads * s.head_size * tokens * sequences) *
                            static_cast<double>(rows) / seconds;
    add({{"kind", "decode"},
         {"sequences", sequences},
         {"rows", rows},
         {"tokens", tokens},
         {"microseconds", seconds * 1e6},
         {"gb_s", rate * 1e-9},
         {"tflop_s", products * 1e-12},
         {"of_copy", rate / bandwidth}},
        fmt::format(
            "decode  {:3} × {:7} rows {:3} tokens  {:9.2f} µs a layer {:8.0f} GB/s  {:3.0f} "
            "% of a copy {:6.1f} TFLOP/s",
            sequences, rows, tokens, seconds * 1e6, rate * 1e-9, 100 * rate / bandwidth,
            products * 1e-12));
  }

  // Bytes read and written a second by a large copy within the device.
  double copy_bandwidth() {
    const int64_t bytes = int64_t{4} << 30;
    Tensor from = Tensor::zeros(DType::u8, {bytes}, context_.device);
    Tensor to(DType::u8, {bytes}, context_.device);
    const double seconds = gpu_seconds(context_, 5, [&] {
      copy_async(context_, to.view().raw(), from.view().raw(), static_cast<size_t>(bytes));
    });
    const double rate = 2 * static_cast<double>(bytes) / seconds;
    add({{"kind", "copy"}, {"gb_s", rate * 1e-9}},
        fmt::format("copy within the device {:.0f} GB/s", rate * 1e-9));
    return rate;
  }

  const nlohmann::json& results() const { return results_; }

 private:
  Tensor upload(const void* data, size_t bytes) const {
    Tensor tensor(DType::u8, {static_cast<int64_t>(bytes)}, context_.device);
    copy_bytes(tensor.view().raw(), context_.device, data, Device::cpu(), bytes);
    return tensor;
  }

  // One tile of 128 queries a kv head, the keys that `fill` picks before it, and its own block.
  template <class Fill>
  Plan make_plan(const QueryView& queries, const RowSet& rows, const Fill& fill) {
    PlanBuilder builder(queries, rows);
    const auto group = static_cast<int>(settings_.heads / settings_.kv_heads);
    for (int64_t begin = 0; begin < queries.count(); begin += block) {
      for (int kv_head = 0; kv_head < settings_.kv_heads; ++kv_head) {
        builder.begin_queries();
        const int64_t end = std::min(begin + block, queries.count());
        builder.add_query_range(begin, end);
        builder.begin_segments();
        fill(builder, begin);
        builder.add_rows(begin, end - begin);
        builder.add_tile(kv_head * group, group);
      }
    }
    return builder.take();
  }

  void report(int64_t tokens, const std::string& name, double pairs,
              const std::function<void()>& call) {
    const double seconds = gpu_seconds(context_, settings_.repeats, call);
    const double rate = 4 * static_cast<double>(settings_.head_size) * pairs / seconds;
    // Plans are checked, compiled and sent before the device starts: part of the time above.
    synchronize(context_);
    const double host = seconds_of(call);
    synchronize(context_);
    add({{"kind", "prefill"},
         {"tokens", tokens},
         {"name", name},
         {"ms", seconds * 1e3},
         {"host_ms", host * 1e3},
         {"tflop_s", rate * 1e-12}},
        fmt::format("prefill {:7} {:<18} {:10.3f} ms, {:8.3f} of them the host's {:7.1f} TFLOP/s",
                    tokens, name, seconds * 1e3, host * 1e3, rate * 1e-12));
  }

  void add(nlohmann::json row, const std::string& line) {
    results_.push_back(std::move(row));
    if (!settings_.json) {
      fmt::print("{}\n", line);
      std::fflush(stdout);
    }
  }

  Context context_;
  Settings settings_;
  std::vector<int32_t> ordinals_;
  nlohmann::json results_ = nlohmann::json::array();
};

int run(int argc, char** argv) {
  Settings settings;
  std::string device = "cuda";
  CLI::App app("Attention on a GPU");
  app.add_option("--device", device, "cuda or cuda:N");
  app.add_option("--tokens", settings.tokens, "prefill lengths")->delimiter(',');
  app.add_option("--contexts", settings.contexts, "rows when decoding")->delimiter(',');
  app.add_option("--heads", settings.heads);
  app.add_option("--kv-heads", settings.kv_heads);
  app.add_option("--head-size", settings.head_size);
  app.add_option("--repeats", settings.repeats);
  app.add_flag("--json", settings.json);
  CLI11_PARSE(app, argc, argv);
  const ThreadPool pool(1);
  Bench bench(Context(pool, parse_device(device)), settings);
  for (const int64_t tokens : settings.tokens) bench.ladder(tokens);
  for (const int64_t window : {64, 1024}) bench.vision(64, window);
  const double bandwidth = bench.copy_bandwidth();
  for (const int64_t rows : settings.contexts) {
    for (const int64_t tokens : {1, 2, 8, 16, 30, 48, 64}) {
      bench.decode(1, rows, tokens, bandwidth);
    }
  }
  for (const int64_t sequences : {8, 32, 64}) {
    bench.decode(sequences, 4096, 1, bandwidth);
  }
  for (const int64_t tokens : {2, 8}) bench.decode(8, 4096, tokens, bandwidth);
  if (settings.json) fmt::print("{}\n", bench.results().dump(2));
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) {
  try {
    return kinora::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_attention_gpu: {}\n", error.what());
    return 1;
  }
}
