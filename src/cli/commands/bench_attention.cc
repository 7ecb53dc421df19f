#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attention/policies/policy.h"
#include "base/error.h"
#include "base/threads.h"
#include "bench/attention_bench.h"
#include "bench/attention_error.h"
#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/policies.h"

namespace kinora::cli {
namespace {

struct AttentionFlags {
  AttentionBenchOptions options;
  std::string device = "cuda";
  std::string dtype = "bf16";
  std::vector<int64_t> tokens{4096, 32768, 131072};
  bool no_lists = false;
  bool json = false;
};

// What attention multiplied in: not always what was asked for.
const char* dtype_of(const AttentionLaunches& launches) {
  if (launches.fp8 == 0) return "bf16";
  return launches.bf16 == 0 ? "fp8" : "both";
}

// The error of FP8 beside that of bf16.
nlohmann::json compare_dtypes(const Context& context, const AttentionFlags& flags, int64_t tokens) {
  nlohmann::json rows = nlohmann::json::array();
  for (const AttentionError& error : attention_errors(context, flags.options, tokens)) {
    rows.push_back({{"tokens", tokens},
                    {"keys", error.keys},
                    {"bf16_error", error.bf16},
                    {"fp8_error", error.fp8}});
    if (flags.json) continue;
    fmt::print("{:>8}  relative error of the output, keys {}: bf16 {:.2e}, fp8 {:.2e}\n", tokens,
               error.keys, error.bf16, error.fp8);
  }
  return rows;
}

int bench_attention(AttentionFlags flags) {
  const AttentionShape& shape = flags.options.shape;
  if (shape.heads % shape.kv_heads != 0) {
    throw Error(ErrorKind::usage,
                fmt::format("{} heads cannot share {} kv heads", shape.heads, shape.kv_heads));
  }
  for (const std::string& policy : flags.options.policies) {
    check_policy("--attention", attention_point(), policy);
    if (find_attention(policy).needs_table) {
      throw Error(ErrorKind::usage, "bench attention has no model, and '" + policy +
                                        "' needs a table of a model's heads");
    }
  }
  for (const std::string& item : flags.options.mix) {
    parse_mixed_head(item, static_cast<int32_t>(flags.options.frame_tokens));
  }
  if (flags.options.text_tokens >= flags.options.frame_tokens) {
    throw Error(ErrorKind::usage,
                fmt::format("--text {}: a frame has only {} tokens (--frame)",
                            flags.options.text_tokens, flags.options.frame_tokens));
  }
  const ThreadPool threads;
  const Context context(threads, parse_device(flags.device));
  if (context.device.is_cpu()) {
    throw Error(ErrorKind::unsupported,
                "bench attention measures GPUs; for the CPU build and run bench_attention");
  }
  flags.options.lists = !flags.no_lists;
  flags.options.dtype = attention_dtype_of(flags.dtype);
  const bool fp8 = flags.options.dtype == AttentionDtype::fp8;
  if (fp8 && !has_fp8_attention(context.device)) {
    throw Error(ErrorKind::unsupported, "--attention-dtype fp8 needs a Hopper GPU");
  }
  const CudaDeviceInfo device = cuda_devices()[static_cast<size_t>(context.device.index)];
  nlohmann::json rows = nlohmann::json::array(), errors = nlohmann::json::array();
  if (!flags.json) {
    fmt::print("one layer, {} heads on {} of {}, {}\n", shape.heads, shape.kv_heads,
               shape.head_size, device.name);
    fmt::print("{:>8}  {:<44} {:>5} {:>10} {:>10} {:>9} {:>8} {:>8} {:>8}\n", "tokens", "attention",
               "dtype", "ms", "index ms", "host ms", "TFLOP/s", "% read", "x dense");
  }
  for (const int64_t tokens : flags.tokens) {
    double dense = 0;
    kinora::cli::bench_attention(
        context, flags.options, tokens, [&](const AttentionFigure& figure) {
          if (dense == 0) dense = figure.seconds;
          // Two products of two operations for every pair and element of a head; making lists
          // computes none of them.
          const double rate = 4 * figure.pairs * static_cast<double>(shape.head_size) /
                              (figure.seconds - figure.index_seconds);
          rows.push_back({{"tokens", tokens},
                          {"attention", figure.name},
                          {"dtype", dtype_of(figure.launches)},
                          {"ms", figure.seconds * 1e3},
                          {"index_ms", figure.index_seconds * 1e3},
                          {"host_ms", figure.host_seconds * 1e3},
                          {"tflops", rate * 1e-12},
                          {"share", figure.share},
                          {"speedup", dense / figure.seconds}});
          for (const auto& [label, seconds] : figure.parts) {
            rows.back()["parts_ms"][label] = seconds * 1e3;
          }
          if (flags.json) return;
          fmt::print(
              "{:>8}  {:<44} {:>5} {:>10.3f} {:>10.3f} {:>9.3f} {:>8.1f} {:>8.2f} {:>8.2f}\n",
              tokens, figure.name, dtype_of(figure.launches), figure.seconds * 1e3,
              figure.index_seconds * 1e3, figure.host_seconds * 1e3, rate * 1e-12,
              100 * figure.share, dense / figure.seconds);
          std::fflush(stdout);
        });
    if (fp8) {
      for (nlohmann::json& row : compare_dtypes(context, flags, tokens)) errors.push_back(row);
    }
  }
  if (flags.json) {
    nlohmann::json all{{"device", device.name}, {"rows", rows}};
    if (fp8) all["errors"] = errors;
    fmt::print("{}\n", all.dump(2));
  }
  return 0;
}

}  // namespace

void add_bench_attention(CommandLine& line, CLI::App& bench) {
  const auto flags = std::make_shared<AttentionFlags>();
  flags->options.policies = {"a-shape:sink=1024,local=4096",
                             "tri-shape:sink=1024,local=4096",
                             "vertical-slash:verticals=1000,slashes=1024",
                             "vertical-slash:verticals=1000,slashes=6144",
                             "momo:query-stride=16,k=64",
                             "momo:query-stride=17,k=128"};
  CLI::App* command =
      bench.add_subcommand("attention", "Measure one layer's attention on a GPU, dense and sparse");
  AttentionBenchOptions& options = flags->options;
  command->add_option("--device", flags->device, "cuda or cuda:N")->capture_default_str();
  command->add_option("--tokens", flags->tokens, "Lengths, such as 4096,131072")
      ->delimiter(',')
      ->check(whole(1));
  command->add_option("--attention", options.policies, "Policies; give it once for each")
      ->type_name("NAME");
  command
      ->add_option("--attention-dtype", flags->dtype,
                   "bf16, or fp8: beside dense attention in bf16, with the errors of both")
      ->capture_default_str()
      ->check(one_of(attention_dtype_names()));
  command->add_flag("--no-lists", flags->no_lists, "Leave out the ladder of blocks and rows");
  command
      ->add_option("--dense-below", options.dense_below,
                   "Policies read densely below this many rows")
      ->capture_default_str()
      ->check(whole(0));
  command->add_option("--heads", options.shape.heads, "Query heads")
      ->capture_default_str()
      ->check(whole(1));
  command->add_option("--kv-heads", options.shape.kv_heads, "Key heads")
      ->capture_default_str()
      ->check(whole(1));
  command->add_option("--frame", options.frame_tokens, "Tokens of a frame")
      ->capture_default_str()
      ->check(whole(1));
  command->add_option("--text", options.text_tokens, "Text tokens among them, the first")
      ->capture_default_str()
      ->check(whole(0));
  command
      ->add_option(
          "--mix", options.mix,
          "Besides, a table whose heads take these in turn, each BOUNDARY/PATTERN; give it "
          "once for each")
      ->type_name("HEAD");
  command->add_option("--repeats", options.repeats, "Measured calls; the median counts")
      ->capture_default_str()
      ->check(whole(1));
  command->add_flag("--json", flags->json, "Print JSON");
  command->footer(
      "Examples:\n"
      "  kinora bench attention --tokens 4096,32768,131072\n"
      "  kinora bench attention --tokens 1048576 --no-lists --attention momo\n"
      "  kinora bench attention --tokens 131072 --attention-dtype fp8\n"
      "  kinora bench attention --text 16 --mix both/grid --mix none/vertical-slash");
  command->callback([&line, flags] { line.action = [flags] { return bench_attention(*flags); }; });
}

}  // namespace kinora::cli
