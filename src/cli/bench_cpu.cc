#include "cli/bench_cpu.h"

#include <fmt/format.h>

#include "base/threads.h"
#include "bench/cpu_bench.h"
#include "ops/packed_rows.h"

namespace kinora::cli {
namespace {

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace

nlohmann::json bench_cpu(const Context& context, const std::string& shape,
                         std::optional<PackedKind> weights, DType row_type, int64_t layers,
                         const std::vector<int64_t>& contexts, const std::vector<int64_t>& lengths,
                         bool text) {
  const CpuBench bench(context, model_shape(shape), layers, weights, row_type);
  const CpuCeilings best = bench.ceilings();
  const std::string device = fmt::format("CPU, {} threads", context.threads->threads());
  nlohmann::json out = {{"shape", shape},
                        {"rows", row_type_name(row_type)},
                        {"device", device},
                        {"layers_run", layers},
                        {"ceilings",
                         {{"multiply_gflops", best.multiply_rate / 1e9},
                          {"read_gb_per_s", best.read_bandwidth / 1e9}}}};
  if (text) {
    fmt::print("{} on {}, random weights in {}, keys and values in {}, scaled from {} layers\n",
               shape, device, weights ? packed_kind_name(*weights) : "bf16",
               row_type_name(row_type), layers);
    fmt::print("ceilings   our best product {:.0f} GFLOP/s, reading {:.1f} GB/s\n",
               best.multiply_rate / 1e9, best.read_bandwidth / 1e9);
  }
  for (const int64_t rows : contexts) {
    const CpuFigure figure = bench.decode(rows);
    const double limit = figure.step_bytes / best.read_bandwidth;
    out["decode"].push_back({{"context", rows},
                             {"ms_per_token", figure.seconds * 1e3},
                             {"limit_ms", limit * 1e3},
                             {"share", share(limit, figure.seconds)}});
    if (text) {
      fmt::print("decode     {} rows: {:.0f} ms a token, {:.0f} % of the {:.0f} ms limit\n", rows,
                 figure.seconds * 1e3, 100 * share(limit, figure.seconds), limit * 1e3);
    }
  }
  for (const int64_t tokens : lengths) {
    const CpuFigure figure = bench.prefill(tokens);
    const double rate = figure.operations / figure.seconds;
    out["prefill"].push_back({{"tokens", tokens},
                              {"seconds", figure.seconds},
                              {"tokens_per_s", static_cast<double>(tokens) / figure.seconds},
                              {"gflops", rate / 1e9},
                              {"share", share(rate, best.multiply_rate)}});
    if (text) {
      fmt::print("prefill    {:>8} tokens: {:.1f} s, {:.1f} tokens/s, {:.0f} GFLOP/s, {:.0f} %\n",
                 tokens, figure.seconds, static_cast<double>(tokens) / figure.seconds, rate / 1e9,
                 100 * share(rate, best.multiply_rate));
    }
  }
  return out;
}

}  // namespace kinora::cli
