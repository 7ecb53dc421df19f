// Products with weights in 4 and 8 bits on a GPU: the four of a decoder layer, for few rows as a
// share of the time that reading the packed bytes takes, for many beside bf16 weights. Both sides
// run in turns; layers follow one another, so that no cache holds the weights.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/gpu.h"
#include "common/gpu_time.h"
#include "model/weights/random_weights.h"
#include "ops/cuda_kernels.h"
#include "ops/matmul.h"
#include "ops/packed_strips.h"

namespace kinora::bench {
namespace {

struct Settings {
  int64_t hidden = 3584, intermediate = 18944, qkv = 4608;
  std::vector<int64_t> few{1, 2, 4, 8, 16, 32, 64};
  std::vector<int64_t> many{1024, 4096, 16384};
  int64_t layers = 4;
  int repeats = 9;
  bool splits = false;
  bool json = false;
};

struct Product {
  std::string name;
  int64_t n, k;
  bool paired;
};

constexpr double beyond_caches = 200e6;  // bytes
// So few are replayed from a captured graph, as decoding does: a launch of its own takes longer
// than the smallest products. More rows of bf16 weights may take memory, which a graph cannot.
constexpr int64_t most_captured_rows = 48;

struct Weights {
  std::vector<std::shared_ptr<const PackedStrips>> packed;
  std::vector<Tensor> plain;
  double packed_bytes = 0;
};

Weights make_weights(const Context& context, const Product& product, PackedKind kind,
                     int64_t layers) {
  Weights made;
  WeightMaker make(context, DType::bf16, kind), plain(context, DType::bf16);
  const int64_t rows = product.paired ? product.n / 2 : product.n;
  const LinearWeights one = make.linear(rows, product.k, false);
  std::vector<const PackedMatrix*> parts{one.packed.get()};
  LinearWeights other;
  if (product.paired) {
    other = make.linear(rows, product.k, false);
    parts.push_back(other.packed.get());
  }
  // The same numbers in memory of their own for every layer.
  do {
    made.packed.push_back(std::make_shared<PackedStrips>(context, parts, product.paired));
    made.plain.push_back(plain.matrix(product.n, product.k));
    made.packed_bytes = static_cast<double>(made.packed.back()->bytes());
  } while (std::ssize(made.packed) < layers ||
           made.packed_bytes * static_cast<double>(made.packed.size()) < beyond_caches);
  return made;
}

class Runner {
 public:
  Runner(const Context& context, const Product& product, const Weights& weights, int64_t m)
      : context_(context),
        product_(product),
        weights_(weights),
        a_(random_tensor(context, DType::bf16, {m, product.k}, 1.0f, 3)),
        out_(DType::bf16, {m, product.paired ? product.n / 2 : product.n}, context.device) {}

  double packed(int repeats, int split) {
    return each(repeats, [&](const Context& context, size_t layer) {
      cuda::packed_matmul(context, {a_, {}, {}, out_, false}, *weights_.packed[layer], {}, split);
    });
  }
  double plain(int repeats) {
    return each(repeats, [&](const Context& context, size_t layer) {
      product_.paired ? gated_matmul(context, a_, weights_.plain[layer], out_)
                      : matmul(context, a_, weights_.plain[layer], out_);
    });
  }

 private:
  double each(int repeats, const std::function<void(const Context&, size_t)>& run) {
    const auto all = [&](const Context& context) {
      for (size_t layer = 0; layer < weights_.packed.size(); ++layer) run(context, layer);
    };
    double seconds = 0;
    if (a_.size(0) <= most_captured_rows) {
      all(context_);  // what is asked of the device or tried out once
      const GpuGraph graph = GpuGraph::record(context_, all);
      seconds = gpu_seconds(context_, repeats, [&] { graph.launch(context_); });
    } else {
      seconds = gpu_seconds(context_, repeats, [&] { all(context_); });
    }
    return seconds / static_cast<double>(weights_.packed.size());
  }

  const Context& context_;
  const Product& product_;
  const Weights& weights_;
  Tensor a_, out_;
};

int run(const Settings& settings) {
  if (cuda_devices().empty()) throw Error(ErrorKind::unsupported, "this benchmark needs a GPU");
  const ThreadPool threads;
  const Context context(threads, Device::cuda());
  const double bandwidth = gpu_read_bandwidth(context);
  const std::vector<Product> products = {
      {"qkv", settings.qkv, settings.hidden, false},
      {"output", settings.hidden, settings.hidden, false},
      {"gate and up", 2 * settings.intermediate, settings.hidden, true},
      {"down", settings.hidden, settings.intermediate, false}};
  nlohmann::json out = {{"device", cuda_devices()[0].name}, {"read_gb_per_s", bandwidth / 1e9}};
  if (!settings.json)
    fmt::print("{}, reading {:.0f} GB/s\n", cuda_devices()[0].name, bandwidth / 1e9);
  for (const PackedKind kind : {PackedKind::int4, PackedKind::int8, PackedKind::fp8}) {
    // By rows: seconds and limits of all four products.
    std::vector<std::array<double, 3>> all(settings.few.size() + settings.many.size());
    for (const Product& product : products) {
      const Weights weights = make_weights(context, product, kind, settings.layers);
      for (size_t i = 0; i < all.size(); ++i) {
        const bool few = i < settings.few.size();
        const int64_t m = few ? settings.few[i] : settings.many[i - settings.few.size()];
        Runner runner(context, product, weights, m);
        std::string splits;
        if (few && settings.splits) {
          for (const int split : {1, 2, 4}) {
            splits += fmt::format(" {:7.2f}", runner.packed(settings.repeats, split) * 1e6);
          }
        }
        const double packed = runner.packed(settings.repeats, 0);
        const double plain = runner.plain(settings.repeats);
        const double limit = weights.packed_bytes / bandwidth;
        all[i][0] += packed;
        all[i][1] += plain;
        all[i][2] += limit;
        out["products"].push_back({{"weights", packed_kind_name(kind)},
                                   {"product", product.name},
                                   {"rows", m},
                                   {"microseconds", packed * 1e6},
                                   {"bf16_microseconds", plain * 1e6},
                                   {"limit_share", limit / packed}});
        if (!settings.json) {
          fmt::print("{:4} {:11} {:>5} rows: {:9.2f} µs, bf16 {:9.2f}, {:3.0f} % of the limit{}\n",
                     packed_kind_name(kind), product.name, m, packed * 1e6, plain * 1e6,
                     100 * limit / packed, splits.empty() ? "" : "; split 1, 2, 4:" + splits);
        }
      }
    }
    for (size_t i = 0; i < all.size(); ++i) {
      const int64_t m =
          i < settings.few.size() ? settings.few[i] : settings.many[i - settings.few.size()];
      out["layers"].push_back({{"weights", packed_kind_name(kind)},
                               {"rows", m},
                               {"microseconds", all[i][0] * 1e6},
                               {"times_bf16", all[i][1] / all[i][0]},
                               {"limit_share", all[i][2] / all[i][0]}});
      if (!settings.json) {
        fmt::print(
            "{:4} a layer     {:>5} rows: {:9.2f} µs, {:.2f} × bf16, {:3.0f} % of the limit\n",
            packed_kind_name(kind), m, all[i][0] * 1e6, all[i][1] / all[i][0],
            100 * all[i][2] / all[i][0]);
      }
    }
  }
  if (settings.json) fmt::print("{}\n", out.dump(1));
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) {
  kinora::bench::Settings settings;
  CLI::App app("Products with weights in 4 and 8 bits on a GPU");
  app.add_option("--few", settings.few, "Rows as in decoding")->delimiter(',');
  app.add_option("--many", settings.many, "Rows as in prefill")->delimiter(',');
  app.add_option("--hidden", settings.hidden)->capture_default_str();
  app.add_option("--intermediate", settings.intermediate)->capture_default_str();
  app.add_option("--qkv", settings.qkv, "Rows of queries, keys and values")->capture_default_str();
  app.add_option("--layers", settings.layers, "Matrices in turn, at least")->capture_default_str();
  app.add_option("--repeats", settings.repeats)->capture_default_str();
  app.add_flag("--splits", settings.splits, "Also with other numbers of blocks for a row");
  app.add_flag("--json", settings.json);
  CLI11_PARSE(app, argc, argv);
  try {
    return kinora::bench::run(settings);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_packed_gpu: {}\n", error.what());
    return 1;
  }
}
