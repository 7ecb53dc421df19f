// Sparse policies against dense attention, and dense attention against the f32 peak, all in one
// run and interleaved: every round measures the peak, dense and every policy once.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attention/policies/policy.h"
#include "attention/search/search.h"
#include "base/error.h"
#include "common/samples.h"
#include "input.h"
#include "peak.h"

namespace kinora::bench {
namespace {

struct Settings {
  int64_t tokens = 32768;
  int64_t sample = 4096;  // tokens that the table is tuned on
  int repeats = 3;
  int threads = 0;
  std::string shape = "both";
  std::string table;
  bool json = false;
};

struct Method {
  std::string name;
  std::string text;   // for make_attention
  double target = 0;  // times dense
  Samples seconds;
  Samples speed_up;
  double share = 1;  // of the dense FLOPs
  double index_seconds = 0;
};

struct Result {
  std::string name;
  InputShape shape;
  Samples peak;     // GFLOP/s
  Samples dense;    // GFLOP/s
  Samples of_peak;  // share
  std::vector<Method> methods;
};

HeadTable tune(const Context& context, const Input& input, int64_t sample) {
  HeadTable table;
  const InputShape& shape = input.shape();
  table.shape = {"bench", 1, static_cast<int>(shape.heads), static_cast<int>(shape.kv_heads),
                 static_cast<int>(shape.head_size)};
  table.heads.resize(static_cast<size_t>(shape.heads));
  SearchOptions options;
  options.frame_stride = static_cast<int32_t>(shape.frame);
  options.boundaries = {Boundary::none};  // the sample's text lies outside its first tokens
  options.unit = CostUnit::cpu;           // times are what is compared here
  PatternSearch search(table, options, [&](int, int head, const HeadChoice& choice) {
    fmt::print(stderr, "\rtune: head {} of {}: {}\x1b[K", head + 1, shape.heads, to_string(choice));
  });
  const RowSet rows[] = {input.rows(sample)};
  search.see(context, {0, input.queries(sample), rows, input.scale()});
  fmt::print(stderr, "\r\x1b[K");
  return table;
}

Result measure(const Context& context, const std::string& name, const InputShape& shape,
               const Settings& settings) {
  const Input input(shape, 1);
  const QueryView queries = input.queries(shape.tokens);
  const RowSet rows = input.rows(shape.tokens);
  AttentionOptions options;
  options.sparse.dense_below = 0;
  options.frame_stride = static_cast<int32_t>(shape.frame);
  options.table = std::make_shared<const HeadTable>(
      settings.table.empty() ? tune(context, input, std::min(settings.sample, shape.tokens))
                             : parse_head_table(real_files().read(settings.table), settings.table));
  Result result;
  result.name = name;
  result.shape = shape;
  const auto add = [&](const char* title, const char* text, double target) {
    Method method;
    method.name = title;
    method.text = text;
    method.target = target;
    result.methods.push_back(std::move(method));
  };
  add("grid, stride 64, all lines", "grid:stride=64,lines=hvs", 6);
  add("mminference, tuned table", "mminference", 2);
  add("momo, 2048 sparse keys", "momo:keys=2048", 2.5);

  Tensor out(DType::f32, {shape.tokens, shape.heads, shape.head_size});
  const double flops = 4.0 * static_cast<double>(shape.head_size) *
                       static_cast<double>(dense_pairs(shape.heads, queries, rows));
  for (int round = 0; round < settings.repeats; ++round) {
    const auto dense = make_attention("dense", options);
    const double before = measure_peak_flops(context, 0.5);
    const double dense_seconds =
        seconds_of([&] { dense->attend(context, 0, queries, rows, input.scale(), out); });
    const double peak = (before + measure_peak_flops(context, 0.5)) / 2;
    result.peak.add(peak * 1e-9);
    result.dense.add(flops / dense_seconds * 1e-9);
    result.of_peak.add(flops / dense_seconds / peak);
    for (Method& method : result.methods) {
      const auto policy = make_attention(method.text, options);
      const double seconds =
          seconds_of([&] { policy->attend(context, 0, queries, rows, input.scale(), out); });
      method.seconds.add(seconds);
      method.speed_up.add(dense_seconds / seconds);
      const AttentionReport& report = *policy->report();
      method.share = report.share();
      method.index_seconds = report.index_seconds;
    }
    fmt::print(stderr, "{}: round {} of {}\n", name, round + 1, settings.repeats);
  }
  return result;
}

std::string spread(const Samples& samples, const char* unit) {
  const Summary summary = samples.summary();
  return fmt::format("{:.3g} {} ({:.3g} … {:.3g})", summary.median, unit, summary.low,
                     summary.high);
}

void print(const Result& result) {
  fmt::print("{}: {} tokens, {}/{} heads of {}\n", result.name, result.shape.tokens,
             result.shape.heads, result.shape.kv_heads, result.shape.head_size);
  fmt::print("  f32 peak               {}\n", spread(result.peak, "GFLOP/s"));
  fmt::print("  dense                  {}\n", spread(result.dense, "GFLOP/s"));
  fmt::print("  dense of the peak      {}   target ≥ 0.5\n", spread(result.of_peak, ""));
  for (const Method& method : result.methods) {
    fmt::print("  {:<28} {} × dense   target ≥ {}   {:.1f} % of the FLOPs, {}, index {:.3f} s\n",
               method.name, spread(method.speed_up, ""), method.target, 100 * method.share,
               spread(method.seconds, "s"), method.index_seconds);
  }
}

nlohmann::ordered_json as_json(const Samples& samples) {
  const Summary summary = samples.summary();
  return {{"median", summary.median}, {"low", summary.low}, {"high", summary.high}};
}

nlohmann::ordered_json as_json(const Result& result) {
  nlohmann::ordered_json json = {{"name", result.name},
                                 {"tokens", result.shape.tokens},
                                 {"heads", result.shape.heads},
                                 {"kv_heads", result.shape.kv_heads},
                                 {"head_size", result.shape.head_size}};
  json["peak_gflops"] = as_json(result.peak);
  json["dense_gflops"] = as_json(result.dense);
  json["dense_of_peak"] = as_json(result.of_peak);
  for (const Method& method : result.methods) {
    json["policies"].push_back({{"name", method.name},
                                {"attention", method.text},
                                {"speed_up", as_json(method.speed_up)},
                                {"target", method.target},
                                {"seconds", as_json(method.seconds)},
                                {"index_seconds", method.index_seconds},
                                {"share_of_flops", method.share}});
  }
  return json;
}

int run(const Settings& settings) {
  const ThreadPool pool(settings.threads);
  const Context context(pool);
  std::vector<Result> results;
  if (settings.shape == "bundled" || settings.shape == "both") {
    // The bundled model: 6/2 heads of 64, 16 tokens a frame pair.
    results.push_back(measure(context, "bundled model", {settings.tokens, 6, 2, 64, 16}, settings));
  }
  if (settings.shape == "large" || settings.shape == "both") {
    results.push_back(
        measure(context, "28/4 heads of 128", {settings.tokens, 28, 4, 128, 64}, settings));
  }
  nlohmann::ordered_json all = {{"threads", pool.threads()}};
  for (const Result& result : results) {
    if (!settings.json) print(result);
    all["results"].push_back(as_json(result));
  }
  if (settings.json) fmt::print("{}\n", all.dump(1));
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) {
  kinora::bench::Settings settings;
  CLI::App app("Sparse attention policies against the dense runner, and that against the f32 peak");
  app.add_option("--tokens", settings.tokens, "tokens of the prefill")
      ->check(CLI::Range(256, 1 << 20));
  app.add_option("--repeats", settings.repeats, "rounds")->check(CLI::Range(1, 100));
  app.add_option("--threads", settings.threads, "0: one a core")->check(CLI::Range(0, 1024));
  app.add_option("--shape", settings.shape, "bundled, large or both")
      ->check(CLI::IsMember({"bundled", "large", "both"}));
  app.add_option("--table", settings.table, "an attention table; without it one is tuned first");
  app.add_option("--sample", settings.sample, "tokens to tune on")->check(CLI::Range(256, 1 << 20));
  app.add_flag("--json", settings.json, "for scripts");
  CLI11_PARSE(app, argc, argv);
  try {
    return kinora::bench::run(settings);
  } catch (const kinora::Error& error) {
    fmt::print(stderr, "bench_attention: {}\n", error.what());
    return 1;
  }
}
