// Matrix products of decoder shapes against what the machine can do: many rows (prefill) against
// the best f32 library, one row (decode) against the speed of reading memory, and the products of
// bf16 against what their instructions do on registers. Every repetition also measures the ceiling,
// since the speed of a shared machine drifts.
#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "base/random.h"
#include "common/ceilings.h"
#include "common/report.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/matmul_cpu.h"
#include "product_peak.h"

namespace kinora::bench {
namespace {

struct Product {
  std::string name;
  int64_t m, n, k;
  DType type;
  bool native_bf16 = false;
};

// Weights of several layers, so that no cache holds them from one repetition to the next.
class Weights {
 public:
  Weights(const Context& context, const Product& product, int64_t bytes_at_least) {
    const Shape shape{product.n, product.k};
    Tensor random_weights(DType::f32, shape);
    Random random(7);
    float* values = random_weights.data<float>();
    for (int64_t i = 0; i < random_weights.elements(); ++i) {
      values[i] = static_cast<float>(random.uniform(-1, 1));
    }
    do {
      layers_.emplace_back(product.type, shape);
      convert(context, random_weights, layers_.back());
      bytes_ += layers_.back().bytes();
    } while (bytes_ < bytes_at_least);
  }
  const std::vector<Tensor>& layers() const { return layers_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::vector<Tensor> layers_;
  int64_t bytes_ = 0;
};

double seconds_for(const Context& context, const Product& product, const Weights& weights,
                   const Tensor& a, Tensor& out) {
  MatmulOptions options;
  options.native_bf16 = product.native_bf16;
  return seconds_of([&] {
    for (const Tensor& layer : weights.layers()) matmul(context, a, layer, out, options);
  });
}

void measure_many_rows(const Context& context, const std::vector<Product>& products,
                       int repetitions, Report& report) {
  MatmulCeiling ceiling(*context.threads);
  std::vector<Samples> speeds(products.size());
  std::vector<Weights> weights;
  for (const Product& product : products) weights.emplace_back(context, product, 0);
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    if (ceiling.available()) ceiling.sample();
    for (size_t i = 0; i < products.size(); ++i) {
      const Product& product = products[i];
      const Tensor a = Tensor::zeros(DType::f32, {product.m, product.k});
      Tensor out(DType::f32, {product.m, product.n});
      const double seconds = seconds_for(context, product, weights[i], a, out);
      const double flops = 2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) *
                           static_cast<double>(product.k);
      speeds[i].add(flops / seconds / 1e9);
    }
  }
  if (ceiling.available()) {
    report.add({"ceiling: sgemm 2048³ of " + ceiling.library(), "GFLOP/s", ceiling.gflops(), {}});
  }
  for (size_t i = 0; i < products.size(); ++i) {
    report.add({products[i].name, "GFLOP/s", speeds[i], speeds[i].divided_by(ceiling.gflops())});
  }
}

void measure_one_row(const Context& context, const std::vector<Product>& products, int repetitions,
                     Report& report) {
  ReadCeiling ceiling(*context.threads);
  std::vector<Samples> speeds(products.size()), shares(products.size());
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& product = products[i];
    const Weights weights(context, product, int64_t{256} << 20);
    const Tensor a = Tensor::zeros(DType::f32, {product.m, product.k});
    Tensor out(DType::f32, {product.m, product.n});
    seconds_for(context, product, weights, a, out);
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      ceiling.sample();
      const double seconds = seconds_for(context, product, weights, a, out);
      speeds[i].add(static_cast<double>(weights.bytes()) / seconds / 1e9);
      shares[i].add(speeds[i].values().back() / ceiling.gigabytes_per_second().values().back());
    }
  }
  report.add({"ceiling: reading 512 MiB", "GB/s", ceiling.gigabytes_per_second(), {}});
  for (size_t i = 0; i < products.size(); ++i) {
    report.add({products[i].name, "GB/s", speeds[i], shares[i]});
  }
}

// Every set of instructions for bf16 that this CPU has, those that do not pay here too.
void measure_bf16(const Context& context, int repetitions, Report& report) {
  struct Case {
    std::string name;
    int64_t m, n, k;
  };
  const Case cases[] = {{"2048³", 2048, 2048, 2048},
                        {"512 rows × 9728 × 896", 512, 9728, 896},
                        {"512 rows × 8960 × 1536", 512, 8960, 1536},
                        {"512 rows × 1536 × 8960", 512, 1536, 8960},
                        {"64 rows × 8960 × 1536", 64, 8960, 1536}};
  for (const cpu::Bf16Product* product : cpu::bf16_products()) {
    const std::string name(product->instructions);
    Samples peak;
    struct Line {
      std::string name;
      Samples speeds, shares;
    };
    std::vector<Line> lines;
    for (const Case& c : cases) {
      const Weights weights(context, {"", c.m, c.n, c.k, DType::bf16}, 0);
      Tensor a(DType::f32, {c.m, c.k}), out(DType::f32, {c.m, c.n});
      Random random(5);
      float* values = a.data<float>();
      for (int64_t i = 0; i < a.elements(); ++i) {
        values[i] = static_cast<float>(random.uniform(-1, 1));
      }
      cpu::MatmulWork work{c.m, c.n, c.k, values, c.k};
      work.weight = weights.layers()[0].view().raw();
      work.weight_type = DType::bf16;
      work.weight_stride = c.k;
      work.out = out.data<float>();
      work.out_stride = c.n;
      const auto measure = [&](const std::string& line_name, const auto& multiply) {
        Line line{line_name, {}, {}};
        for (int repetition = 0; repetition < repetitions; ++repetition) {
          peak.add(measure_bf16_peak(context, *product, 0.02) / 1e9);
          line.speeds.add(2e-9 * static_cast<double>(c.m * c.n * c.k) / seconds_of(multiply));
          line.shares.add(line.speeds.values().back() / peak.values().back());
        }
        lines.push_back(std::move(line));
      };
      measure(c.name + ", f32 without " + name, [&] { cpu::matmul_blocked(context, work); });
      measure(c.name + ", " + name, [&] { product->run(context, {&work, 1}, false); });
      if (product->exact_rows_from == 0) continue;
      measure(c.name + ", " + name + ", rows in three parts", [&] {
        product->run(context, {&work, 1}, true);
      });
    }
    report.add({"ceiling: " + name + " on registers", "GFLOP/s", peak, {}});
    for (const Line& line : lines) report.add({line.name, "GFLOP/s", line.speeds, line.shares});
  }
}

int run(int argc, char** argv) {
  int threads = 0, repetitions = 7;
  bool json = false;
  CLI::App app{"Matrix products against the ceilings of this machine"};
  app.add_option("--threads", threads, "threads to use (0: one a core)");
  app.add_option("--repetitions", repetitions, "measurements of each figure")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--json", json, "print JSON");
  CLI11_PARSE(app, argc, argv);

  const ThreadPool pool(threads);
  const Context context(pool);
  Report report("Matrix products, f32 rows × stored weights");
  report.note("threads", std::to_string(pool.threads()));
  const cpu::Bf16Product* bf16_product = cpu::best_bf16_product();
  report.note("native bf16", bf16_product ? std::string(bf16_product->instructions) : "no");

  // A Qwen2.5-0.5B layer: 896 wide, 4864 in the feed-forward, 1152 for queries, keys and values.
  std::vector<Product> many{{"2048³, f32", 2048, 2048, 2048, DType::f32},
                            {"2048³, bf16", 2048, 2048, 2048, DType::bf16},
                            {"2048³, f16", 2048, 2048, 2048, DType::f16},
                            {"1024 rows × 1152 × 896, bf16", 1024, 1152, 896, DType::bf16},
                            {"1024 rows × 9728 × 896, bf16", 1024, 9728, 896, DType::bf16},
                            {"1024 rows × 896 × 4864, bf16", 1024, 896, 4864, DType::bf16},
                            {"64 rows × 9728 × 896, bf16", 64, 9728, 896, DType::bf16},
                            {"16 rows × 9728 × 896, bf16", 16, 9728, 896, DType::bf16},
                            {"8 rows × 9728 × 896, bf16", 8, 9728, 896, DType::bf16},
                            {"5 rows × 9728 × 896, bf16", 5, 9728, 896, DType::bf16},
                            {"2 rows × 9728 × 896, bf16", 2, 9728, 896, DType::bf16}};
  if (native_bf16_available()) {
    many.push_back({"2048³, native bf16", 2048, 2048, 2048, DType::bf16, true});
  }
  measure_many_rows(context, many, repetitions, report);
  measure_bf16(context, repetitions, report);
  measure_one_row(context,
                  {{"1 row × 9728 × 896, f32", 1, 9728, 896, DType::f32},
                   {"1 row × 9728 × 896, bf16", 1, 9728, 896, DType::bf16},
                   {"1 row × 896 × 4864, bf16", 1, 896, 4864, DType::bf16},
                   {"1 row × 1152 × 896, bf16", 1, 1152, 896, DType::bf16},
                   {"4 rows × 9728 × 896, bf16", 4, 9728, 896, DType::bf16},
                   {"1 row × 151936 × 896, bf16", 1, 151936, 896, DType::bf16},
                   {"1 row × 151936 × 896, f16", 1, 151936, 896, DType::f16}},
                  repetitions, report);
  std::cout << (json ? report.as_json() + "\n" : report.as_text());
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) { return kinora::bench::run(argc, argv); }
