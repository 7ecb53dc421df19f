// Products with weights in 8 and 4 bits on a CPU, in the shapes of Qwen2.5-1.5B's feed-forward
// layer: few rows against the speed of reading memory, many against what the instructions for bytes
// do on registers, where the CPU has any. Every repetition also measures the ceiling. `--compare`
// runs the dot products beside, where the CPU has tiles as well.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "common/ceilings.h"
#include "common/report.h"
#include "ops/packed_matmul.h"
#include "product_peak.h"

namespace kinora::bench {
namespace {

constexpr int64_t few_rows = 20;  // up to here a product is bound by reading weights
constexpr int64_t beyond_caches = int64_t{512} << 20;

struct MatrixShape {
  int64_t n, k;
};

// Weights of several layers, so that no cache holds them from one repetition to the next.
class Weights {
 public:
  Weights(const ThreadPool& pool, PackedKind kind, MatrixShape shape) {
    Random random(7);
    std::vector<uint8_t> codes(static_cast<size_t>(1 << 20));
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random.below(256));
    PackedMatrix::Source source;
    source.kind = kind;
    source.rows = shape.n;
    source.columns = shape.k;
    source.group = kind == PackedKind::int4 ? 128 : shape.k;
    source.zero = kind == PackedKind::int4 ? 8.0f : 0.0f;
    source.codes = [&](int64_t first, int64_t count, uint8_t* to) {
      for (int64_t i = 0; i < count * shape.k; ++i) {
        const uint8_t code = codes[static_cast<size_t>((first * shape.k + i) % (1 << 20))];
        to[i] = kind == PackedKind::int4 ? static_cast<uint8_t>(code & 15) : code;
      }
    };
    source.scale = [](int64_t, int64_t) { return 0.01f; };
    do {
      layers_.push_back(std::make_unique<PackedMatrix>(pool, source));
      bytes_ += layers_.back()->bytes();
    } while (bytes_ < beyond_caches);
  }
  const std::vector<std::unique_ptr<PackedMatrix>>& layers() const { return layers_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::vector<std::unique_ptr<PackedMatrix>> layers_;
  int64_t bytes_ = 0;
};

struct Line {
  std::string name;
  int64_t m;
  const cpu::PanelKernels* kernels;
  Samples speeds, shares;
};

// How many bytes, or operations, a second; and the share of the limit, where it is known.
void measure(const Context& context, const Weights& weights, MatrixShape shape, bool exact,
             std::optional<double> limit, Line& line) {
  Tensor a(DType::f32, {line.m, shape.k}), out(DType::f32, {line.m, shape.n});
  Random random(5);
  for (int64_t i = 0; i < a.elements(); ++i) {
    a.data<float>()[i] = static_cast<float>(random.uniform(-1, 1));
  }
  const auto pass = [&] {
    for (const auto& layer : weights.layers()) {
      cpu::PackedWork product;
      product.work.m = line.m;
      product.work.n = shape.n;
      product.work.k = shape.k;
      product.work.a = a.data<float>();
      product.work.a_stride = shape.k;
      product.work.out = out.data<float>();
      product.work.out_stride = shape.n;
      product.matrix = layer.get();
      cpu::packed_matmul(context, {&product, 1}, !exact, line.kernels);
    }
  };
  const double seconds = seconds_of(pass);
  const double operations = 2.0 * static_cast<double>(line.m * shape.n * shape.k) *
                            static_cast<double>(weights.layers().size());
  const double amount = line.m <= few_rows ? static_cast<double>(weights.bytes()) : operations;
  line.speeds.add(amount / seconds / 1e9);
  if (limit) line.shares.add(line.speeds.values().back() / *limit);
}

int run(int argc, char** argv) {
  int threads = 0, repetitions = 5;
  bool json = false, compare = false, exact = false;
  std::vector<int64_t> rows{1, 4, 8, 20, 21, 32, 64, 128, 256, 512};
  CLI::App app{"Products with weights in 8 and 4 bits against the ceilings of this machine"};
  app.add_option("--threads", threads, "threads to use (0: one a core)");
  app.add_option("--repetitions", repetitions, "measurements of each figure")
      ->check(CLI::Range(1, 1000));
  app.add_option("--rows", rows, "numbers of rows")->delimiter(',');
  app.add_flag("--exact", exact, "rows as exact as f32");
  app.add_flag("--compare", compare, "also by dot products, where there are tiles");
  app.add_flag("--json", json, "print JSON");
  CLI11_PARSE(app, argc, argv);

  const ThreadPool pool(threads);
  const Context context(pool);
  Report report("Products with packed weights");
  report.note("threads", std::to_string(pool.threads()));
  const bool by_bytes = !byte_instructions().empty();
  report.note("instructions for bytes", by_bytes ? std::string(byte_instructions()) : "none");
  ReadCeiling reading(pool);
  Samples peak;
  std::vector<Line> all;
  for (const PackedKind kind : {PackedKind::int8, PackedKind::int4}) {
    for (const MatrixShape shape : {MatrixShape{8960, 1536}, MatrixShape{1536, 8960}}) {
      const Weights weights(pool, kind, shape);
      std::vector<Line> lines;
      for (const int64_t m : rows) {
        const std::string name = std::string(packed_kind_name(kind)) + ", " + std::to_string(m) +
                                 (m == 1 ? " row × " : " rows × ") + std::to_string(shape.n) +
                                 " × " + std::to_string(shape.k);
        lines.push_back({name, m, nullptr, {}, {}});
        if (compare && cpu::packed_amx_int8_available() && m > few_rows) {
          lines.push_back({name + ", VNNI", m, cpu::vnni_panel_kernels(), {}, {}});
        }
      }
      for (int repetition = 0; repetition < repetitions; ++repetition) {
        reading.sample();
        if (by_bytes) peak.add(measure_byte_peak(context, 0.05) / 1e9);
        for (Line& line : lines) {
          std::optional<double> limit;
          if (line.m <= few_rows) {
            limit = reading.gigabytes_per_second().values().back();
          } else if (by_bytes) {
            limit = peak.values().back();
          }
          measure(context, weights, shape, exact, limit, line);
        }
      }
      all.insert(all.end(), lines.begin(), lines.end());
    }
  }
  report.add({"ceiling: reading 512 MiB", "GB/s", reading.gigabytes_per_second(), {}});
  if (by_bytes) {
    report.add(
        {"ceiling: " + std::string(byte_instructions()) + " on registers", "GOP/s", peak, {}});
  }
  for (const Line& line : all) {
    report.add({line.name, line.m <= few_rows ? "GB/s" : "GOP/s", line.speeds, line.shares});
  }
  std::cout << (json ? report.as_json() + "\n" : report.as_text());
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) { return kinora::bench::run(argc, argv); }
