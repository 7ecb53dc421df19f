#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "attention/attention_dtype.h"
#include "attention/policies/policy.h"
#include "base/error.h"
#include "base/gpu.h"
#include "base/threads.h"
#include "bench/head_mix.h"
#include "bench/model_bench.h"
#include "cli/bench_cpu.h"
#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/policies.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "ops/packed_rows.h"

namespace kinora::cli {
namespace {

constexpr int tree_turns = 5;

struct BenchFlags {
  std::string shape = "qwen2.5-vl-7b";
  std::string device = "auto";
  std::string weights = "bf16";
  std::string rows = "bf16";
  bool random_weights = false;
  std::vector<int64_t> tokens;    // empty: what suits the device
  std::vector<int64_t> contexts;  // this too
  std::vector<int64_t> sessions;
  int64_t session_rows = 4096;
  int64_t videos = 0;
  std::vector<int64_t> drafts;
  std::vector<std::string> trees;
  int64_t tree_vocabulary = 0;
  int mass_layers = 0;
  int mass_heads = 0;
  int64_t group = 16384;
  int64_t layers = 0;
  int64_t frames = 64;
  int64_t side = 448;
  std::string attention = "dense";
  std::string attention_dtype = "bf16";
  std::vector<std::string> mix;
  bool json = false;
  std::string json_file;
};

// Layers in the middle of the model, and some or all of their heads.
std::vector<LayerHeads> mass_layers(const BenchFlags& flags, int64_t layers) {
  std::vector<LayerHeads> chosen;
  const int64_t count = std::min<int64_t>(flags.mass_layers, layers);
  for (int64_t i = 0; i < count; ++i) {
    chosen.push_back({static_cast<int>((layers - count) / 2 + i)});
    if (flags.mass_heads > 0) chosen.back().heads = (uint64_t{1} << flags.mass_heads) - 1;
  }
  return chosen;
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

// 30-4-8: total, depth, width, with the bounds of the drafter's own settings.
TreeShape read_tree(const std::string& text) {
  TreeShape shape;
  std::array<int64_t*, 3> parts{&shape.total, &shape.depth, &shape.width};
  constexpr std::array<int64_t, 3> most{64, 16, 32};
  std::istringstream in(text);
  for (size_t i = 0; i < parts.size(); ++i) {
    char dash = '-';
    if ((i > 0 && !(in >> dash)) || dash != '-' || !(in >> *parts[i]) || *parts[i] < 1 ||
        *parts[i] > most[i]) {
      throw Error(ErrorKind::usage, fmt::format("'{}' is no tree: give total-depth-width, such as "
                                                "30-4-8 (at most 64-16-32)",
                                                text));
    }
  }
  if (in.peek() != std::istringstream::traits_type::eof() || shape.total < 2) {
    throw Error(ErrorKind::usage,
                fmt::format("'{}' is no tree: give total-depth-width, such as 30-4-8", text));
  }
  return shape;
}

void write_json(const BenchFlags& flags, const nlohmann::json& out) {
  if (flags.json) fmt::print("{}\n", json_text(out));
  if (flags.json_file.empty()) return;
  std::ofstream file(flags.json_file);
  file << json_text(out) << '\n';
  if (!file.flush()) {
    throw Error(ErrorKind::resource, "cannot write the figures to " + flags.json_file);
  }
}

// The first GPU that models can use, else the CPU.
Device chosen_device(const std::string& name) {
  if (name != "auto") return parse_device(name);
  const auto devices = cuda_devices();
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].major >= 8) return Device::cuda(static_cast<int>(i));
  }
  return Device::cpu();
}

// None: bf16.
std::optional<PackedKind> packed_weights(const std::string& name) {
  for (const PackedKind kind : {PackedKind::int4, PackedKind::int8, PackedKind::fp8}) {
    if (name == packed_kind_name(kind)) return kind;
  }
  return std::nullopt;
}

DType row_type(const std::string& name) {
  for (const DType type : {DType::i8, DType::u8}) {
    if (name == row_type_name(type)) return type;
  }
  return DType::bf16;
}

int bench_model(BenchFlags flags) {
  if (!flags.random_weights) {
    throw Error(ErrorKind::usage, "bench model measures shapes: give --random-weights");
  }
  check_policy("--attention", attention_point(), flags.attention);
  const bool needs_table = find_attention(flags.attention).needs_table;
  if (needs_table && flags.mix.empty()) {
    throw Error(ErrorKind::usage, "made-up weights have no table of heads, and '" +
                                      flags.attention + "' needs one: say its heads with --mix");
  }
  if (!needs_table && !flags.mix.empty()) {
    throw Error(ErrorKind::usage, "--mix gives heads to a policy with a table, and '" +
                                      flags.attention + "' has none");
  }
  for (const std::string& item : flags.mix) parse_mixed_head(item, usual_frame_tokens);
  const ThreadPool threads;
  const Context context(threads, chosen_device(flags.device));
  const bool cpu = context.device.is_cpu();
  if (flags.tokens.empty()) {
    flags.tokens =
        cpu ? std::vector<int64_t>{512, 2048} : std::vector<int64_t>{4096, 16384, 32768, 131072};
  }
  if (flags.contexts.empty()) {
    flags.contexts =
        cpu ? std::vector<int64_t>{1024, 8192} : std::vector<int64_t>{1024, 25600, 131072};
  }
  if (cpu) {
    if (flags.attention != "dense" || flags.attention_dtype != "bf16" || flags.mass_layers > 0 ||
        !flags.sessions.empty() || !flags.drafts.empty() || !flags.trees.empty()) {
      throw Error(ErrorKind::unsupported,
                  "on the CPU, bench model measures plain prefill and decoding; the other figures "
                  "need a GPU");
    }
    const int64_t layers = flags.layers > 0 ? flags.layers : 2;
    write_json(flags,
               bench_cpu(context, flags.shape, packed_weights(flags.weights), row_type(flags.rows),
                         layers, flags.contexts, flags.tokens, !flags.json));
    return 0;
  }
  const AttentionDtype attention_dtype = attention_dtype_of(flags.attention_dtype);
  if (attention_dtype == AttentionDtype::fp8 && !has_fp8_attention(context.device)) {
    throw Error(ErrorKind::unsupported, "--attention-dtype fp8 needs a Hopper GPU");
  }
  const CudaDeviceInfo device = cuda_devices()[static_cast<size_t>(context.device.index)];
  const ModelBench bench(context, model_shape(flags.shape), packed_weights(flags.weights),
                         row_type(flags.rows));
  const bool text = !flags.json;
  nlohmann::json out = {{"shape", flags.shape},
                        {"weights", flags.weights},
                        {"rows", flags.rows},
                        {"device", device.name}};

  const BenchCeilings best = bench.ceilings();
  out["ceilings"] = {{"multiply_tflops", best.multiply_rate / 1e12},
                     {"read_gb_per_s", best.read_bandwidth / 1e9}};
  if (text) {
    fmt::print("{} on {}, random weights in {}, keys and values in {}\n", flags.shape, device.name,
               flags.weights, flags.rows);
    fmt::print("ceilings   best matrix product {:.0f} TFLOP/s, reading {:.0f} GB/s\n",
               best.multiply_rate / 1e12, best.read_bandwidth / 1e9);
  }

  const ProductsFigure products = bench.products(flags.group);
  const double product_rate = products.operations / products.seconds;
  out["products"] = {{"rows", products.rows},
                     {"tflops", product_rate / 1e12},
                     {"share", share(product_rate, best.multiply_rate)}};
  if (text) {
    fmt::print("products   of a layer, {} rows: {:.0f} TFLOP/s, {:.0f} % of the best\n",
               products.rows, product_rate / 1e12, 100 * share(product_rate, best.multiply_rate));
  }

  for (const int64_t rows : flags.contexts) {
    const DecodeFigure figure = bench.decode(rows, 64);
    const double limit = figure.step_bytes / best.read_bandwidth;
    out["decode"].push_back({{"context", rows},
                             {"ms_per_token", figure.seconds * 1e3},
                             {"device_ms", figure.device_seconds * 1e3},
                             {"limit_ms", limit * 1e3},
                             {"share", share(limit, figure.seconds)}});
    if (text) {
      fmt::print(
          "decode     at {:>7} rows: {:.3f} ms a token, {:.0f} % of the {:.3f} ms limit; {:.3f} ms "
          "to the logits on the GPU\n",
          rows, figure.seconds * 1e3, 100 * share(limit, figure.seconds), limit * 1e3,
          figure.device_seconds * 1e3);
    }
  }

  if (flags.mass_layers > 0) {
    for (const int64_t rows : flags.contexts) {
      const DecodeFigure figure = bench.decode(rows, 256, 1, 1, mass_layers(flags, bench.layers()));
      out["mass"].push_back({{"context", rows},
                             {"layers", flags.mass_layers},
                             {"heads", flags.mass_heads},
                             {"ms_per_token", figure.seconds * 1e3},
                             {"mass_ms_per_token", figure.mass_seconds * 1e3},
                             {"device_ms", figure.device_seconds * 1e3},
                             {"mass_device_ms", figure.mass_device_seconds * 1e3},
                             {"ratio", share(figure.mass_seconds, figure.seconds)}});
      if (text) {
        fmt::print(
            "mass       of {} layers at {:>7} rows: {:.3f} ms a token, {:.3f} without, {:+.1f} %\n",
            flags.mass_layers, rows, figure.mass_seconds * 1e3, figure.seconds * 1e3,
            100 * (share(figure.mass_seconds, figure.seconds) - 1));
      }
    }
  }

  // Many sessions together, and many tokens of one session: each step reads the weights once.
  const auto together = [&](const char* key, int64_t rows, int64_t sessions, int64_t tokens,
                            int64_t videos = 0) {
    const DecodeFigure figure = bench.decode(rows, 64, sessions, tokens, {}, videos);
    const double limit = figure.step_bytes / best.read_bandwidth;
    out[key].push_back({{"context", rows},
                        {"sessions", sessions},
                        {"tokens", tokens},
                        {"videos", videos},
                        {"ms_per_step", figure.seconds * 1e3},
                        {"device_ms", figure.device_seconds * 1e3},
                        {"limit_ms", limit * 1e3},
                        {"share", share(limit, figure.seconds)}});
    if (text) {
      fmt::print(
          "decode     {} session{} of {} token{} at {} rows{}: {:.3f} ms a step, {:.0f} % of the "
          "{:.3f} ms limit; {:.3f} ms to the logits on the GPU\n",
          sessions, sessions > 1 ? "s" : "", tokens, tokens > 1 ? "s" : "", rows,
          videos > 0 ? fmt::format(" of {} video{}", videos, videos > 1 ? "s" : "") : "",
          figure.seconds * 1e3, 100 * share(limit, figure.seconds), limit * 1e3,
          figure.device_seconds * 1e3);
    }
  };
  for (const int64_t sessions : flags.sessions) {
    together("sessions", flags.session_rows, sessions, 1, flags.videos);
  }
  for (const int64_t tokens : flags.drafts) together("drafts", flags.contexts.back(), 1, tokens);

  // One tree of guesses, and the pass that checks it, against a plain step: in turns, as a GPU that
  // has worked for a while is faster or slower than before.
  for (const std::string& name : flags.trees) {
    const TreeShape shape = read_tree(name);
    const int64_t rows = flags.contexts.back();
    DraftFigure draft;
    std::vector<double> drafting, checking, stepping, evens;
    for (int turn = 0; turn < tree_turns; ++turn) {
      draft = bench.draft(shape, flags.tree_vocabulary);
      drafting.push_back(draft.seconds);
      stepping.push_back(bench.decode(rows, 64).seconds);
      checking.push_back(bench.decode(rows, 64, 1, draft.tokens).seconds);
      evens.push_back((drafting.back() + checking.back()) / stepping.back());
    }
    for (auto* times : {&drafting, &checking, &stepping, &evens}) {
      std::sort(times->begin(), times->end());
    }
    const double drafted = drafting[tree_turns / 2], checked = checking[tree_turns / 2];
    const double plain = stepping[tree_turns / 2], even = evens[tree_turns / 2];
    const double limit = draft.tree_bytes / best.read_bandwidth;
    out["trees"].push_back({{"tree", name},
                            {"vocabulary", flags.tree_vocabulary},
                            {"context", rows},
                            {"draft_ms", drafted * 1e3},
                            {"draft_limit_ms", limit * 1e3},
                            {"tokens", draft.tokens},
                            {"check_ms", checked * 1e3},
                            {"plain_ms", plain * 1e3},
                            {"even_at", even},
                            {"even_low", evens.front()},
                            {"even_high", evens.back()}});
    if (text) {
      fmt::print(
          "tree       {}{} at {} rows: {:.3f} ms to draft ({:.0f} % of the {:.3f} ms limit), "
          "{:.3f} ms to check {} tokens, {:.3f} ms a plain step: t accepted tokens are t / {:.3f} "
          "times faster ({:.3f} to {:.3f} in {} turns)\n",
          name,
          flags.tree_vocabulary > 0 ? fmt::format(" over {} tokens", flags.tree_vocabulary) : "",
          rows, drafted * 1e3, 100 * share(limit, drafted), limit * 1e3, checked * 1e3,
          draft.tokens, plain * 1e3, even, evens.front(), evens.back(), tree_turns);
    }
  }

  if (flags.frames > 0) {
    const VisionFigure figure = bench.vision(flags.frames, flags.side, flags.side);
    const double rate = figure.operations / figure.seconds;
    out["vision"] = {{"frames", figure.frames},
                     {"width", figure.width},
                     {"height", figure.height},
                     {"frames_per_s", static_cast<double>(figure.frames) / figure.seconds},
                     {"tflops", rate / 1e12},
                     {"share", share(rate, best.multiply_rate)}};
    if (text) {
      fmt::print("vision     {} frames of {}x{}: {:.0f} frames/s, {:.0f} TFLOP/s, {:.0f} %\n",
                 figure.frames, figure.width, figure.height,
                 static_cast<double>(figure.frames) / figure.seconds, rate / 1e12,
                 100 * share(rate, best.multiply_rate));
    }
  }

  for (const int64_t tokens : flags.tokens) {
    const int64_t layers = flags.layers > 0 ? flags.layers : INT64_MAX;
    const PrefillFigure figure =
        bench.prefill(tokens, flags.group, layers, {flags.attention, flags.mix, attention_dtype});
    const double rate = figure.operations / figure.seconds;
    out["prefill"].push_back({{"tokens", tokens},
                              {"group", figure.group},
                              {"layers_run", figure.layers},
                              {"seconds", figure.seconds},
                              {"tokens_per_s", static_cast<double>(tokens) / figure.seconds},
                              {"tflops", rate / 1e12},
                              {"share", share(rate, best.multiply_rate)},
                              {"attention", flags.attention},
                              {"mix", flags.mix},
                              {"fp8_launches", figure.launches.fp8},
                              {"bf16_launches", figure.launches.bf16},
                              {"attention_share", figure.attention_share},
                              {"index_seconds", figure.index_seconds},
                              {"attention_seconds", figure.attention_seconds},
                              {"peak_bytes", figure.peak_bytes}});
    if (text) {
      fmt::print(
          "prefill    {:>8} tokens{}: {:.3f} s, {:.0f} tokens/s, {:.0f} TFLOP/s, {:.0f} %, "
          "peak {}\n",
          tokens, flags.layers > 0 ? fmt::format(" (scaled from {} layers)", figure.layers) : "",
          figure.seconds, static_cast<double>(tokens) / figure.seconds, rate / 1e12,
          100 * share(rate, best.multiply_rate), human_bytes(figure.peak_bytes));
      if (attention_dtype == AttentionDtype::fp8) {
        fmt::print("           attention in fp8: {} of {} launches, the others in bf16\n",
                   figure.launches.fp8, figure.launches.fp8 + figure.launches.bf16);
      }
      if (flags.attention != "dense") {
        fmt::print("           {}: {:.3f} s of it, {:.3f} of these making lists; {:.1f} % read\n",
                   flags.attention, figure.attention_seconds, figure.index_seconds,
                   100 * figure.attention_share);
      }
    }
  }
  write_json(flags, out);
  return 0;
}

}  // namespace

void add_bench(CommandLine& line) {
  CLI::App* bench = line.app.add_subcommand("bench", "Measure the machine");
  bench->require_subcommand(1);
  bench->callback([] { Interrupts::end_at_once(); });
  bench->footer(
      "Examples:\n"
      "  kinora bench model --shape qwen2.5-vl-7b --random-weights\n"
      "  kinora bench attention --tokens 4096,131072\n"
      "  kinora bench overlap talk.mp4 --random-weights\n"
      "  kinora bench stream --random-weights\n"
      "  kinora bench draft demo \"Describe the video.\"");
  const auto flags = std::make_shared<BenchFlags>();
  CLI::App* model = bench->add_subcommand(
      "model", "Measure a model's shape on a GPU or, without one, on the CPU");
  model
      ->add_option("--shape", flags->shape,
                   "qwen2.5-vl-7b, qwen2.5-vl-3b, qwen3-vl-8b or llava-onevision-7b")
      ->capture_default_str();
  model->add_flag("--random-weights", flags->random_weights, "Make the weights up");
  model
      ->add_option("--weights", flags->weights,
                   "What the layers' weights are kept in: bf16, fp8, int8 or int4")
      ->capture_default_str()
      ->check(one_of({"bf16", "fp8", "int8", "int4"}));
  model->add_option("--rows", flags->rows, "What keys and values are kept in: bf16, int8 or fp8")
      ->capture_default_str()
      ->check(one_of({"bf16", "int8", "fp8"}));
  model->add_option("--device", flags->device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  model->add_option("--tokens", flags->tokens, "Lengths to prefill, such as 4096,131072")
      ->delimiter(',')
      ->check(whole(1));
  model->add_option("--contexts", flags->contexts, "Rows in memory to decode at")
      ->delimiter(',')
      ->check(whole(1));
  model->add_option("--sessions", flags->sessions, "Sessions that decode together, such as 1,8,32")
      ->delimiter(',')
      ->check(whole(1, 64));
  model->add_option("--session-rows", flags->session_rows, "Rows in memory of each of them")
      ->capture_default_str()
      ->check(whole(1));
  model
      ->add_option("--videos", flags->videos,
                   "Videos that these sessions ask about, sharing their rows; 0: each has its own")
      ->capture_default_str()
      ->check(whole(0, 64));
  model
      ->add_option("--drafts", flags->drafts,
                   "Tokens of one session checked together, at the last of the contexts")
      ->delimiter(',')
      ->check(whole(1, 64));
  model
      ->add_option("--trees", flags->trees,
                   "Trees of guesses to draft and check there, such as 30-4-8,48-5-10")
      ->delimiter(',')
      ->type_name("TREES");
  model
      ->add_option("--tree-vocabulary", flags->tree_vocabulary,
                   "Tokens that the draft's own head knows; 0 is all of the model's")
      ->capture_default_str()
      ->check(whole(0));
  model
      ->add_option("--mass", flags->mass_layers,
                   "Also decode, in turns, with the attention mass of every row in N layers")
      ->check(whole(0))
      ->type_name("N");
  model->add_option("--mass-heads", flags->mass_heads, "Heads of each of these layers; 0 is all")
      ->capture_default_str()
      ->check(whole(0, 63));
  model->add_option("--attention", flags->attention, "Attention while prefilling, as in ask")
      ->capture_default_str()
      ->type_name("NAME");
  model
      ->add_option(
          "--mix", flags->mix,
          "A head of the table of mminference, BOUNDARY/PATTERN; heads of every layer take "
          "these in turn")
      ->type_name("HEAD");
  model
      ->add_option("--attention-dtype", flags->attention_dtype,
                   "What it multiplies in: bf16, or fp8 on Hopper GPUs")
      ->capture_default_str()
      ->check(one_of(attention_dtype_names()));
  model->add_option("--group", flags->group, "Tokens prefilled together")
      ->capture_default_str()
      ->check(whole(1));
  model
      ->add_option(
          "--layers", flags->layers,
          "Prefill through only this many layers and scale the time (very long prompts); on "
          "the CPU 2 by default")
      ->check(whole(1));
  model->add_option("--frames", flags->frames, "Frames for the vision tower; 0 leaves it out")
      ->capture_default_str()
      ->check(whole(0));
  model->add_option("--side", flags->side, "Pixels of a frame's side")
      ->capture_default_str()
      ->check(whole(1));
  model->add_flag("--json", flags->json, "Print JSON");
  model->add_option("--json-file", flags->json_file, "Also write JSON to this file");
  model->footer(
      "Examples:\n"
      "  kinora bench model --shape qwen2.5-vl-7b --random-weights\n"
      "  kinora bench model --shape 3b --random-weights --tokens 1048576 --layers 2 --json");
  model->callback([&line, flags] { line.action = [flags] { return bench_model(*flags); }; });
  add_bench_attention(line, *bench);
  add_bench_overlap(line, *bench);
  add_bench_stream(line, *bench);
  add_bench_draft(line, *bench);
}

}  // namespace kinora::cli
