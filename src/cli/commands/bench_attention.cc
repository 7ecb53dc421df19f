#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "attention/policies/policy.h"
#include "base/error.h"
#include "base/threads.h"
#include "bench/attention_bench.h"
#include "bench/attention_error.h"
#include "bench/head_mix.h"
#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/policies.h"

namespace kinora::cli {
namespace {

struct AttentionFlags {
  AttentionBenchOptions options;
  std::string device = "cuda";
  std::string dtype = "bf16";
  std::vector<int64_t> tokens;
  bool no_lists = false;
  bool mass = false;
  bool json = false;
};

void check(const AttentionFlags& flags) {
  const AttentionBenchOptions& options = flags.options;
  const AttentionShape& shape = options.shape;
  if (shape.heads % shape.kv_heads != 0) {
    throw Error(ErrorKind::usage,
                fmt::format("{} heads cannot share {} kv heads", shape.heads, shape.kv_heads));
  }
  for (const std::string& policy : options.policies) {
    check_policy("--attention", attention_point(), policy);
    if (find_attention(policy).needs_table) {
      throw Error(ErrorKind::usage, "bench attention has no model, and '" + policy +
                                        "' needs a table of a model's heads");
    }
  }
  for (const std::string& item : options.mix) {
    parse_mixed_head(item, static_cast<int32_t>(options.keys.frame_tokens));
  }
  if (options.keys.text_tokens >= options.keys.frame_tokens) {
    throw Error(ErrorKind::usage, fmt::format("--text {}: a frame has only {} tokens (--frame)",
                                              options.keys.text_tokens, options.keys.frame_tokens));
  }
  if (!options.hold.empty() && options.mix.empty()) {
    throw Error(ErrorKind::usage, "--hold chooses among the patterns of --mix, and there are none");
  }
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Lines of a table, or rows of JSON.
class AttentionPrinter {
 public:
  AttentionPrinter(const AttentionFlags& flags, std::string device, bool on_cpu)
      : flags_(flags), device_(std::move(device)), on_cpu_(on_cpu) {}

  void print(int64_t tokens, const Context& context) {
    dense_ = 0;
    AttentionListener listener;
    listener.needed = [&](const std::vector<double>& needed) { tell_needed(tokens, needed); };
    listener.figure = [&](const AttentionFigure& figure) { tell_figure(figure); };
    listener.chosen = [&](double hold, const std::vector<std::string>& mix) {
      tell_mix(tokens, hold, mix);
    };
    kinora::cli::bench_attention(context, flags_.options, tokens, listener);
    if (flags_.options.dtype == AttentionDtype::fp8) tell_errors(tokens, context);
  }
  void begin() const {
    if (flags_.json) return;
    const AttentionShape& shape = flags_.options.shape;
    fmt::print("one layer, {} heads on {} of {}, {}\n", shape.heads, shape.kv_heads,
               shape.head_size, device_);
    fmt::print("{:>8}  {:<44} {:>5} {:>10} {:>10} {:>9} {:>8} {:>8} {:>8}{}\n", "tokens",
               "attention", "dtype", "ms", "index ms", "host ms", "TFLOP/s", "% read", "x dense",
               mass() ? "   % held   lowest" : "");
  }
  void end() const {
    if (!flags_.json) return;
    nlohmann::json all{{"device", device_}, {"rows", rows_}};
    if (!keys_.empty()) all["keys"] = keys_;
    if (!errors_.empty()) all["errors"] = errors_;
    fmt::print("{}\n", all.dump(2));
  }

 private:
  // What attention multiplied in: not always what was asked for.
  const char* dtype_of(const AttentionLaunches& launches) const {
    if (launches.fp8 == 0) return on_cpu_ ? "f32" : "bf16";
    return launches.bf16 == 0 ? "fp8" : "both";
  }
  bool mass() const { return flags_.options.mass_rows > 0; }

  void tell_needed(int64_t tokens, const std::vector<double>& needed) {
    const auto few = std::ranges::count_if(needed, [](double share) { return share < 0.02; });
    const double below = static_cast<double>(few) / static_cast<double>(needed.size());
    keys_.push_back({{"tokens", tokens},
                     {"needed", mean(needed)},
                     {"heads_below_2_percent", below},
                     {"needed_of_heads", needed}});
    if (flags_.json) return;
    fmt::print(
        "{:>8}  95 % of the attention is in {:.2f} % of the weights, mean over heads; "
        "{:.1f} % of the heads need less than 2 %\n",
        tokens, 100 * mean(needed), 100 * below);
    std::fflush(stdout);
  }

  void tell_figure(const AttentionFigure& figure) {
    if (dense_ == 0) dense_ = figure.seconds;
    // Two products of two operations for every pair and element of a head; making lists computes
    // none of them.
    const double rate = 4 * figure.pairs * static_cast<double>(flags_.options.shape.head_size) /
                        (figure.seconds - figure.index_seconds);
    nlohmann::json row{{"tokens", figure.tokens},
                       {"attention", figure.name},
                       {"dtype", dtype_of(figure.launches)},
                       {"ms", figure.seconds * 1e3},
                       {"index_ms", figure.index_seconds * 1e3},
                       {"host_ms", figure.host_seconds * 1e3},
                       {"tflops", rate * 1e-12},
                       {"share", figure.share},
                       {"speedup", dense_ / figure.seconds}};
    for (const auto& [label, seconds] : figure.parts) row["parts_ms"][label] = seconds * 1e3;
    std::string held;
    if (!figure.held.empty()) {
      const double lowest = std::ranges::min(figure.held);
      row["held"] = mean(figure.held);
      row["held_lowest"] = lowest;
      row["held_of_heads"] = figure.held;
      held = fmt::format(" {:>8.2f} {:>8.2f}", 100 * mean(figure.held), 100 * lowest);
    }
    rows_.push_back(row);
    if (flags_.json) return;
    fmt::print("{:>8}  {:<44} {:>5} {:>10.3f} {:>10.3f} {:>9.3f} {:>8.1f} {:>8.2f} {:>8.2f}{}\n",
               figure.tokens, figure.name, dtype_of(figure.launches), figure.seconds * 1e3,
               figure.index_seconds * 1e3, figure.host_seconds * 1e3, rate * 1e-12,
               100 * figure.share, dense_ / figure.seconds, held);
    std::fflush(stdout);
  }

  void tell_mix(int64_t tokens, double hold, const std::vector<std::string>& mix) {
    keys_.back()["mixes"].push_back({{"hold", hold}, {"heads", mix}});
    if (flags_.json) return;
    std::map<std::string, int> counts;
    for (const std::string& item : mix) ++counts[item];
    for (const auto& [item, count] : counts) {
      fmt::print("{:>8}  mix: {} heads take {}\n", tokens, count, item);
    }
  }

  // The error of FP8 beside that of bf16.
  void tell_errors(int64_t tokens, const Context& context) {
    for (const AttentionError& error : attention_errors(context, flags_.options, tokens)) {
      errors_.push_back({{"tokens", tokens},
                         {"keys", error.keys},
                         {"bf16_error", error.bf16},
                         {"fp8_error", error.fp8}});
      if (flags_.json) continue;
      fmt::print("{:>8}  relative error of the output, keys {}: bf16 {:.2e}, fp8 {:.2e}\n", tokens,
                 error.keys, error.bf16, error.fp8);
    }
  }

  const AttentionFlags& flags_;
  std::string device_;
  bool on_cpu_;
  double dense_ = 0;  // seconds
  nlohmann::json rows_ = nlohmann::json::array(), keys_ = nlohmann::json::array();
  nlohmann::json errors_ = nlohmann::json::array();
};

int bench_attention(AttentionFlags flags) {
  if (flags.options.mix == std::vector<std::string>{"auto"} && !flags.options.hold.empty()) {
    flags.options.mix = mix_candidates(flags.options.keys.frame_tokens);
  }
  check(flags);
  const ThreadPool threads;
  const Context context(threads, parse_device(flags.device));
  flags.options.lists = !flags.no_lists;
  flags.options.dtype = attention_dtype_of(flags.dtype);
  if (flags.options.dtype == AttentionDtype::fp8 && !has_fp8_attention(context.device)) {
    throw Error(ErrorKind::unsupported, "--attention-dtype fp8 needs a Hopper GPU");
  }
  if (flags.mass || flags.options.keys_only || !flags.options.hold.empty()) {
    flags.options.mass_rows = 64;
  }
  if (flags.tokens.empty()) {
    flags.tokens = context.device.is_cpu() ? std::vector<int64_t>{4096}
                                           : std::vector<int64_t>{4096, 32768, 131072};
  }
  std::string device = fmt::format("{} threads", threads.threads());
  if (!context.device.is_cpu()) {
    device = cuda_devices()[static_cast<size_t>(context.device.index)].name;
  }
  AttentionPrinter printer(flags, device, context.device.is_cpu());
  printer.begin();
  for (const int64_t tokens : flags.tokens) printer.print(tokens, context);
  printer.end();
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
      bench.add_subcommand("attention", "Measure one layer's attention, dense and sparse");
  AttentionBenchOptions& options = flags->options;
  command->add_option("--device", flags->device, "cuda, cuda:N or cpu")->capture_default_str();
  command
      ->add_option("--tokens", flags->tokens,
                   "Lengths, such as 4096,131072 (default: 4096,32768,131072; on a CPU 4096)")
      ->delimiter(',')
      ->check(whole(1));
  command->add_option("--attention", options.policies, "Policies; give it once for each")
      ->type_name("NAME");
  command
      ->add_option("--attention-dtype", flags->dtype,
                   "bf16, or fp8: beside dense attention in bf16, with the errors of both")
      ->capture_default_str()
      ->check(one_of(attention_dtype_names()));
  command->add_flag("--no-lists", flags->no_lists,
                    "Leave out the ladder of blocks and rows, which only GPUs run");
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
  command->add_option("--head-size", options.shape.head_size, "Columns of a head")
      ->capture_default_str()
      ->check(whole(1));
  command
      ->add_option("--group", options.group,
                   "Only so many queries, the last ones: a group of a long prompt; 0: all")
      ->capture_default_str()
      ->check(whole(0));
  command->add_option("--frame", options.keys.frame_tokens, "Tokens of a frame")
      ->capture_default_str()
      ->check(whole(1));
  command->add_option("--text", options.keys.text_tokens, "Text tokens among them, the first")
      ->capture_default_str()
      ->check(whole(0));
  command
      ->add_option(
          "--mix", options.mix,
          "Besides, a table whose heads take these in turn, each BOUNDARY/PATTERN; give it "
          "once for each; auto: many, for --hold to choose from")
      ->type_name("HEAD");
  command
      ->add_option("--hold", options.hold,
                   "A head takes the fastest pattern of the mix that holds this share of its "
                   "attention, chosen on keys of another seed; such as 0.95, a table for each")
      ->delimiter(',')
      ->type_name("SHARE")
      ->check(between(0, 1));
  command->add_flag("--mass", flags->mass,
                    "Besides, what share of the attention each policy reads, and how few of the "
                    "weights hold 95 % of it; 64 tokens are looked at exactly");
  command->add_flag("--keys-only", options.keys_only,
                    "Only how few of the weights hold 95 %; runs no attention");
  command
      ->add_option("--softest", options.keys.softest,
                   "The least sharp head, 0 to 1; up to 0.4 all need less than 2 % of the weights")
      ->capture_default_str()
      ->check(between(0, 1));
  command->add_option("--seed", options.keys.seed, "Seed of the keys")->capture_default_str();
  command->add_option("--repeats", options.repeats, "Measured calls; the median counts")
      ->capture_default_str()
      ->check(whole(1));
  command->add_flag("--json", flags->json, "Print JSON");
  command->footer(
      "Examples:\n"
      "  kinora bench attention --tokens 4096,32768,131072\n"
      "  kinora bench attention --tokens 1048576 --no-lists --attention momo\n"
      "  kinora bench attention --tokens 131072 --attention-dtype fp8\n"
      "  kinora bench attention --tokens 131072 --no-lists --mass\n"
      "  kinora bench attention --tokens 131072 --device cpu --keys-only\n"
      "  kinora bench attention --no-lists --mix auto --hold 0.95\n"
      "  kinora bench attention --text 16 --mix both/grid --mix none/vertical-slash");
  command->callback([&line, flags] { line.action = [flags] { return bench_attention(*flags); }; });
}

}  // namespace kinora::cli
