// Products of a decoding step on a GPU: the four of a decoder layer and the head, bf16, by every
// way there is for so few rows, beside a kernel that only reads the weights. Matrices follow one
// another, so that no cache holds them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/gpu.h"
#include "common/gpu_time.h"
#include "model/weights/random_weights.h"
#include "ops/matmul.h"
#include "ops/matmul_cuda.h"

namespace kinora::bench {
namespace {

struct Settings {
  int64_t hidden = 3584, intermediate = 18944, qkv = 4608, vocabulary = 152064;
  std::vector<int64_t> rows{2, 4, 8, 16, 32, 48, 64};
  int repeats = 9;
  bool json = false;
};

struct Product {
  std::string name;
  int64_t n, k;
  bool gated;
};

constexpr int64_t beyond_caches = 800'000'000;  // bytes

class Runner {
 public:
  Runner(const Context& context, const Product& product, int repeats)
      : context_(context), product_(product), repeats_(repeats) {
    WeightMaker make(context, DType::bf16);
    do {
      weights_.push_back(make.matrix(product.n, product.k));
    } while (std::ssize(weights_) * bytes() < beyond_caches);
  }

  int64_t bytes() const { return product_.n * product_.k * 2; }

  // Microseconds by every way that fits m rows, and by the one that is chosen.
  nlohmann::json run(int64_t m) const {
    const Tensor a = random_tensor(context_, DType::bf16, {m, product_.k}, 1.0f, 3);
    Tensor out(DType::bf16, {m, product_.gated ? product_.n / 2 : product_.n}, context_.device);
    const auto work = [&](const Tensor& weight) {
      return cuda::MatmulWork{a, weight, {}, out.view(), false};
    };
    nlohmann::json found;
    const auto time = [&](const char* name, const std::function<void(const Tensor&)>& multiply) {
      found[name] = 1e6 *
                    gpu_seconds(context_, repeats_,
                                [&] {
                                  for (const Tensor& weight : weights_) multiply(weight);
                                }) /
                    static_cast<double>(weights_.size());
    };
    const bool gated = product_.gated;
    if (cuda::skinny_fits(context_, work(weights_[0]))) {
      time("skinny", [&](const Tensor& w) { cuda::matmul_skinny(context_, work(w), gated); });
    }
    if (cuda::strips_fit(context_, work(weights_[0]), gated)) {
      time("strips", [&](const Tensor& w) { cuda::matmul_strips(context_, work(w), gated); });
    }
    if (cuda::tiles_fit(context_, work(weights_[0]), gated)) {
      time("tiles", [&](const Tensor& w) { cuda::matmul_tiles(context_, work(w), gated); });
    }
    time("reading alone", [&](const Tensor& w) { cuda::read_all(context_, w); });
    Tensor both(DType::bf16, {m, product_.n}, context_.device);
    time("library", [&](const Tensor& w) {
      cuda::matmul_blas(context_, {a, w, {}, both.view(), false});
    });
    time("chosen", [&](const Tensor& w) {
      gated ? gated_matmul(context_, a, w, out.view()) : matmul(context_, a, w, out.view());
    });
    return found;
  }

 private:
  const Context& context_;
  const Product& product_;
  const int repeats_;
  std::vector<Tensor> weights_;
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
      {"down", settings.hidden, settings.intermediate, false},
      {"head", settings.vocabulary, settings.hidden, false}};
  nlohmann::json all = {{"device", cuda_devices()[0].name}, {"read_gb_per_s", bandwidth / 1e9}};
  if (!settings.json) {
    fmt::print("{}, reading {:.0f} GB/s\n", cuda_devices()[0].name, bandwidth / 1e9);
  }
  for (const Product& product : products) {
    const Runner runner(context, product, settings.repeats);
    const double limit = 1e6 * static_cast<double>(runner.bytes()) / bandwidth;
    for (const int64_t m : settings.rows) {
      nlohmann::json found = runner.run(m);
      const double chosen = found["chosen"];
      if (!settings.json) {
        fmt::print("{:11} {:>3} rows: {:6.1f} µs, {:3.0f} % of the limit;", product.name, m, chosen,
                   100 * limit / chosen);
        for (const auto& [way, time] : found.items()) {
          if (way != "chosen") fmt::print(" {} {:.1f}", way, time.get<double>());
        }
        fmt::print("\n");
      }
      found.update({{"product", product.name}, {"rows", m}, {"limit", limit}});
      all["products"].push_back(found);
    }
  }
  if (settings.json) fmt::print("{}\n", all.dump(1));
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) {
  kinora::bench::Settings settings;
  CLI::App app("Products of a decoding step on a GPU, by every way there is");
  app.add_option("--rows", settings.rows, "Tokens that are decoded together")->delimiter(',');
  app.add_option("--hidden", settings.hidden)->capture_default_str();
  app.add_option("--intermediate", settings.intermediate)->capture_default_str();
  app.add_option("--qkv", settings.qkv, "Rows of queries, keys and values")->capture_default_str();
  app.add_option("--vocabulary", settings.vocabulary)->capture_default_str();
  app.add_option("--repeats", settings.repeats)->capture_default_str();
  app.add_flag("--json", settings.json);
  CLI11_PARSE(app, argc, argv);
  try {
    return kinora::bench::run(settings);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_few_rows_gpu: {}\n", error.what());
    return 1;
  }
}
