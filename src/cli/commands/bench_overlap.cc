#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/policies/policy.h"
#include "base/error.h"
#include "base/gpu.h"
#include "bench/overlap_bench.h"
#include "bench/shapes.h"
#include "cli/bundled.h"
#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/model_name.h"
#include "cli/policies.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "cli/trace_file.h"
#include "engine/engine_state.h"
#include "engine/tokens/tokens.h"
#include "memory/retention/retention.h"
#include "model/random_model.h"

namespace kinora::cli {
namespace {

struct OverlapFlags {
  OverlapSettings settings;
  std::string shape = "qwen2.5-vl-7b";
  std::string device = "auto";
  bool random_weights = false;
  std::vector<std::string> retain{"key-norm:0.2", "all"};
  std::vector<std::string> tokens{"all"};
  std::vector<std::string> attention{"dense"};
  std::vector<double> snap{0};
  bool overlapped_only = false;
  std::string trace;
  std::string timeline;
  bool json = false;
};

Engine make_engine(const OverlapFlags& flags) {
  const std::string directory = find_model("");
  const auto make_model = [&](const Context& context) {
    const ConfigFiles shape = flags.shape == "bundled" ? ConfigFiles::read(real_files(), directory)
                                                       : model_shape(flags.shape).config;
    return random_model(context, real_files(), directory, flags.shape, shape);
  };
  return EngineAccess::make(std::make_shared<const EngineState>(flags.device, 0, make_model));
}

nlohmann::json to_json(const OverlapRun& run) {
  const Timings& times = run.answer.timings;
  return {{"choice", run.tokens},
          {"attention", run.attention},
          {"retain", run.retain},
          {"snap", run.snap},
          {"overlap", run.overlap},
          {"open", run.open},
          {"decode_cpu", times.decode},
          {"waited_for_frames", times.decode_wait},
          {"vision", times.vision},
          {"prefill", times.prefill},
          {"first_group", run.first_group},
          {"last_group", run.last_group},
          {"first_token", run.first_token()},
          {"complete", run.complete()},
          {"generate", times.generate},
          {"row_bytes", run.answer.row_bytes},
          {"gpu_peak_bytes", run.gpu_peak_bytes},
          {"tokens", run.answer.prompt_tokens},
          {"answer_tokens", run.answer.ids.size()}};
}

std::string label_of(const OverlapRun& run) {
  return fmt::format("{}{}{}{}", run.attention == "dense" ? "" : run.attention + ", ",
                     run.tokens == "all" ? "" : run.tokens + ", ", run.retain,
                     run.snap > 0 ? fmt::format(", snap {} s", run.snap) : "");
}

void print_run(const OverlapRun& run) {
  const Timings& times = run.answer.timings;
  fmt::print(
      "| {}, {} | {:.2f} | {:.2f} | {:.1f} | {:.2f} | {:.2f} | {:.2f} | **{:.2f}** | {:.2f} | {} | "
      "{} |\n",
      label_of(run), run.overlap ? "overlapped" : "QuickCodec only", run.open, times.decode_wait,
      times.decode, run.first_group, times.vision, times.prefill, run.first_token(), run.complete(),
      human_bytes(run.answer.row_bytes),
      run.gpu_peak_bytes > 0 ? human_bytes(run.gpu_peak_bytes) : "");
  std::fflush(stdout);
}

// What leaving tokens out gains over the run that keeps all of them.
void print_gains(const std::vector<OverlapRun>& runs) {
  for (const OverlapRun& run : runs) {
    const auto whole = std::find_if(runs.begin(), runs.end(), [&](const OverlapRun& other) {
      return other.tokens == "all" && other.retain == run.retain && other.snap == run.snap &&
             other.attention == run.attention;
    });
    if (run.tokens == "all" || whole == runs.end()) continue;
    const Timings &times = run.answer.timings, &all = whole->answer.timings;
    fmt::print("{}: {} of {} tokens, prefill {:.2f} x faster, first token {:.2f} x\n",
               label_of(run), run.answer.prompt_tokens, whole->answer.prompt_tokens,
               all.prefill / times.prefill, whole->first_token() / run.first_token());
  }
}

int bench_overlap(const OverlapFlags& flags) {
  if (!flags.random_weights) {
    throw Error(ErrorKind::usage, "bench overlap measures shapes: give --random-weights");
  }
  if (flags.shape != "qwen2.5-vl-7b" && flags.shape != "qwen2.5-vl-3b" &&
      flags.shape != "bundled") {
    throw Error(ErrorKind::usage, "unknown shape '" + flags.shape +
                                      "': give qwen2.5-vl-7b, qwen2.5-vl-3b or bundled");
  }
  for (const std::string& retain : flags.retain) {
    check_policy("--retain", retention_point(), retain);
  }
  for (const std::string& tokens : flags.tokens) check_policy("--tokens", tokens_point(), tokens);
  for (const std::string& attention : flags.attention) {
    check_policy("--attention", attention_point(), attention);
    if (find_attention(attention).needs_table) {
      throw Error(ErrorKind::usage, "bench overlap has random weights, and '" + attention +
                                        "' needs a table of a model's heads");
    }
  }
  TraceFile trace(flags.trace, flags.timeline);
  const Engine engine = make_engine(flags);
  const Device device = EngineAccess::state(engine)->context.device;
  const std::string where =
      device.is_cpu() ? "the CPU" : cuda_devices()[static_cast<size_t>(device.index)].name;
  std::vector<std::pair<OverlapSettings, std::string>> wanted;
  for (const std::string& attention : flags.attention) {
    for (const std::string& tokens : flags.tokens) {
      for (const std::string& retain : flags.retain) {
        for (const double snap : flags.snap) {
          wanted.emplace_back(flags.settings, retain);
          wanted.back().first.attention = attention;
          wanted.back().first.tokens = tokens;
          wanted.back().first.snap = snap;
        }
      }
    }
  }
  for (const auto& [settings, retain] : wanted) warm_up(engine, settings, retain);

  nlohmann::json out = {{"shape", flags.shape}, {"device", where}};
  std::vector<OverlapRun> runs;  // overlapped
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto& [settings, retain] = wanted[i];
    std::optional<OverlapRun> apart;
    if (!flags.overlapped_only) apart = run_question(engine, settings, retain, false);
    const OverlapRun overlapped = run_question(engine, settings, retain, true);
    if (i == 0) {
      trace.add(overlapped.answer.spans, overlapped.open);
      trace.write(flags.shape + " on " + where);
    }
    if (!flags.json && i == 0) {
      const InputInfo& input = overlapped.input;
      fmt::print(
          "{} on {}, random weights; {}: {} frames of {}x{}, {} tokens, groups of {} frames, {} "
          "answer tokens; seconds\n\n",
          flags.shape, where, settings.video, input.times.size(), input.width, input.height,
          overlapped.answer.prompt_tokens, settings.frames_per_group, overlapped.answer.ids.size());
      fmt::print(
          "| | index | waited for frames | decode, CPU-s | first group there | vision | prefill | "
          "first token | answer complete | rows | GPU memory, peak |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|\n");
    }
    if (!flags.json) {
      if (apart) print_run(*apart);
      print_run(overlapped);
    }
    out["frames"] = overlapped.input.times.size();
    out["width"] = overlapped.input.width;
    out["height"] = overlapped.input.height;
    if (apart) out["runs"].push_back(to_json(*apart));
    out["runs"].push_back(to_json(overlapped));
    if (apart) {
      const double bound = overlap_bound(*apart, overlapped);
      const bool same = apart->answer.ids == overlapped.answer.ids;
      out["runs"].back()["bound"] = bound;
      out["runs"].back()["same_answer"] = same;
      if (!flags.json) {
        fmt::print(
            "\n{}: bound of equation 3 {:.2f} s, overlapped / bound {:.3f}, {:.2f} x faster "
            "than one after the other\n\n",
            label_of(overlapped), bound, overlapped.first_token() / bound,
            apart->first_token() / overlapped.first_token());
        fmt::print("{}\n\n", same ? "the same answer both times" : "THE ANSWERS DIFFER");
      }
    }
    runs.push_back(overlapped);
  }
  if (!flags.json) print_gains(runs);
  if (flags.json) fmt::print("{}\n", json_text(out));
  return 0;
}

}  // namespace

void add_bench_overlap(CommandLine& line, CLI::App& bench) {
  const auto flags = std::make_shared<OverlapFlags>();
  OverlapSettings& settings = flags->settings;
  CLI::App* overlap = bench.add_subcommand(
      "overlap", "Measure whole questions: decoding during computing, and one after the other");
  overlap
      ->add_option("video", settings.video,
                   "A video file; 'demo' is the clip that comes with kinora")
      ->required()
      ->type_name("FILE");
  overlap
      ->add_option("--shape", flags->shape,
                   "qwen2.5-vl-7b, qwen2.5-vl-3b, or bundled: that of the bundled model")
      ->capture_default_str();
  overlap->add_flag("--random-weights", flags->random_weights, "Make the weights up");
  overlap->add_option("--device", flags->device, "auto, cpu, cuda or cuda:N")
      ->capture_default_str();
  overlap->add_option("--fps", settings.fps, "Frames a second")
      ->capture_default_str()
      ->check(above_zero());
  overlap
      ->add_option("--snap", flags->snap,
                   "Seconds that a frame may be away where another is cheaper to decode, such as "
                   "0,0.5")
      ->delimiter(',')
      ->check(between(0, 3600));
  overlap
      ->add_option(
          "--pixels", settings.pixels,
          "Of a frame, about, however long the video is: the model's own rule is set aside")
      ->capture_default_str()
      ->check(whole(1));
  overlap->add_option("--frames-per-group", settings.frames_per_group, "Prefilled together")
      ->capture_default_str()
      ->check(whole(1));
  overlap->add_option("--retain", flags->retain, "What stays in memory, such as key-norm:0.2,all")
      ->delimiter(',');
  overlap
      ->add_option("--tokens", flags->tokens,
                   "Which visual tokens reach the decoder, such as all,evs:0.25")
      ->delimiter(',');
  overlap
      ->add_option("--attention", flags->attention,
                   "Policies, instead of dense; give it once for each")
      ->type_name("NAME");
  overlap->add_option("--max-tokens", settings.answer_tokens, "Of the answer")
      ->capture_default_str()
      ->check(whole(1));
  overlap->add_option("--decode-threads", settings.decode_threads, "0: one for every core")
      ->capture_default_str()
      ->check(threads());
  overlap->add_flag("--overlapped-only", flags->overlapped_only,
                    "Leave out the runs whose stages stand apart");
  overlap->add_option("--trace", flags->trace, "A Chrome trace of the first overlapped run");
  overlap->add_option("--timeline", flags->timeline, "The same as a picture, .png or .svg");
  overlap->add_flag("--json", flags->json, "Print JSON");
  overlap->footer(
      "Examples:\n"
      "  kinora bench overlap talk.mp4 --random-weights\n"
      "  kinora bench overlap talk.mp4 --random-weights --retain all --tokens all,evs:0.25\n"
      "  kinora bench overlap talk.mp4 --shape bundled --device cpu --random-weights --json");
  overlap->callback([&line, flags] {
    line.action = [flags] {
      flags->settings.video = input_or_demo(flags->settings.video);
      return bench_overlap(*flags);
    };
  });
}

}  // namespace kinora::cli
