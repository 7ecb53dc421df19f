// What the online top-k costs MOMO's measuring: the same query-sparse attention with each of the
// four ways to keep the best k blocks, for growing k, interleaved with dense attention over the
// same queries (no top-k at all).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "attention/policies/delta.h"
#include "attention/policies/dense.h"
#include "attention/policies/policy.h"
#include "base/error.h"
#include "common/samples.h"
#include "input.h"

namespace kinora::bench {
namespace {

struct Settings {
  int64_t tokens = 32768;
  int64_t block = 32;
  int repeats = 3;
  int threads = 0;
};

constexpr std::array methods = {"exact", "tournament", "threshold", "hybrid"};

int run(const Settings& settings) {
  const ThreadPool pool(settings.threads);
  const Context context(pool);
  const Input input({settings.tokens, 6, 2, 64, 16}, 1);  // the bundled model
  const QueryView queries = input.queries(settings.tokens);
  const RowSet rows = input.rows(settings.tokens);
  AttentionOptions options;
  options.sparse.dense_below = 0;
  const std::vector<int> sizes = {8, 16, 32, 64, 128, 256, 512};
  std::vector<std::array<Samples, methods.size()>> seconds(sizes.size());
  Samples plain;
  const SampledQueries sampled(context, queries, 16);
  Tensor exact(DType::f32, sampled.view().queries.shape());
  Tensor out(DType::f32, queries.queries.shape());
  DenseAttention dense;
  for (int round = 0; round < settings.repeats; ++round) {
    plain.add(
        seconds_of([&] { dense.attend(context, 0, sampled.view(), rows, input.scale(), exact); }));
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (size_t m = 0; m < methods.size(); ++m) {
        // Few kept keys: the rest of the policy is not what is measured.
        const auto policy = make_attention(
            fmt::format(
                "momo:query-stride=16,top-k={},k={},exact={},block={},keys={},window=0,delta=0",
                methods[m], sizes[i], std::min(8, sizes[i]), settings.block, settings.block),
            options);
        policy->attend(context, 0, queries, rows, input.scale(), out);
        const AttentionReport& report = *policy->report();
        seconds[i][m].add(report.parts.at("momo measure").seconds);
      }
    }
    fmt::print(stderr, "round {} of {}\n", round + 1, settings.repeats);
  }
  const double base = plain.summary().median;
  fmt::print("{} tokens, every 16th query, 6/2 heads of 64, blocks of {} keys, {} threads\n",
             settings.tokens, settings.block, pool.threads());
  fmt::print("without top-k: {:.3f} s\n\n| k |", base);
  for (const char* name : methods) fmt::print(" {} |", name);
  fmt::print("\n|---|");
  for (size_t m = 0; m < methods.size(); ++m) fmt::print("---|");
  fmt::print("\n");
  for (size_t i = 0; i < sizes.size(); ++i) {
    fmt::print("| {} |", sizes[i]);
    for (const Samples& samples : seconds[i]) {
      const Summary summary = samples.summary();
      fmt::print(" {:.3f} s ({:.3f} … {:.3f}), {:.2f} × |", summary.median, summary.low,
                 summary.high, summary.median / base);
    }
    fmt::print("\n");
  }
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) {
  kinora::bench::Settings settings;
  CLI::App app("Latency of MOMO's measuring with each online top-k, against k");
  app.add_option("--tokens", settings.tokens, "tokens of the prefill")
      ->check(CLI::Range(1024, 1 << 20));
  app.add_option("--block", settings.block, "keys of a block")->check(CLI::IsMember({32, 64}));
  app.add_option("--repeats", settings.repeats, "rounds")->check(CLI::Range(1, 100));
  app.add_option("--threads", settings.threads, "0: one a core")->check(CLI::Range(0, 1024));
  CLI11_PARSE(app, argc, argv);
  try {
    return kinora::bench::run(settings);
  } catch (const kinora::Error& error) {
    fmt::print(stderr, "bench_top_k: {}\n", error.what());
    return 1;
  }
}
