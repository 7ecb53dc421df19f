#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files/archive.h"
#include "base/gpu.h"
#include "bench/shapes.h"
#include "bench/stream_bench.h"
#include "cli/bundled.h"
#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/model_name.h"
#include "cli/policies.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "memory/policies.h"
#include "model/random_model.h"

namespace kinora::cli {
namespace {

struct StreamFlags {
  StreamSettings settings;
  std::string shape = "qwen2.5-vl-7b";
  std::string device = "auto";
  bool random_weights = false;
  std::vector<std::string> memories;
  bool json = false;
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

nlohmann::json to_json(const StreamFigure& figure, const StreamSettings& settings) {
  nlohmann::json moments = nlohmann::json::array();
  for (const StreamMoment& moment : figure.moments) {
    moments.push_back({{"frames", moment.frames},
                       {"rows", moment.rows},
                       {"first_token", moment.first_token},
                       {"ms_per_token", moment.token_seconds * 1e3},
                       {"device_bytes", moment.bytes.device},
                       {"host_bytes", moment.bytes.host},
                       {"disk_bytes", moment.bytes.disk},
                       {"file_bytes_wanted", moment.fetched.wanted},
                       {"file_bytes_late", moment.fetched.late}});
  }
  nlohmann::json out = {{"memory", figure.memory},
                        {"frames_per_s", figure.frames_per_second(settings)},
                        {"vision_seconds", figure.vision_seconds},
                        {"prefill_seconds", figure.prefill_seconds},
                        {"moments", moments},
                        {"busy_frames_per_s", figure.busy_frames_per_second},
                        {"busy_first_token", figure.busy_first_token}};
  if (!settings.file.empty()) {
    const ReopenedFigure& reopened = figure.reopened;
    out["reopened"] = {{"bytes", reopened.bytes},
                       {"save_seconds", reopened.save_seconds},
                       {"open_seconds", reopened.open_seconds},
                       {"first_token", reopened.first_token},
                       {"read_bytes", reopened.read_bytes},
                       {"same_answer", reopened.same}};
  }
  return out;
}

void print_reopened(const StreamFigure& figure) {
  const ReopenedFigure& reopened = figure.reopened;
  const double first = median(reopened.first_token), open = median(reopened.open_seconds);
  const double rate = static_cast<double>(reopened.bytes) / 1e9;
  fmt::print(
      "  saved in {:.1f} s ({}, {:.2f} GB/s); opened again in {:.3f} s ({:.2f} GB/s), first token "
      "after {:.3f} s, for which {} of rows were read: {:.1f} times sooner than taking the frames "
      "in; answers begin {}\n",
      reopened.save_seconds, human_bytes(reopened.bytes), rate / reopened.save_seconds, open,
      rate / open, first, human_bytes(reopened.read_bytes),
      (figure.vision_seconds + figure.prefill_seconds) / first,
      reopened.same ? "the same" : "differently");
}

void print_figure(const StreamFigure& figure, const StreamSettings& settings) {
  fmt::print("{}\n", figure.memory);
  fmt::print("  {:.0f} frames/s taken in: {:.1f} s of vision, {:.1f} s of the decoder and memory\n",
             figure.frames_per_second(settings), figure.vision_seconds, figure.prefill_seconds);
  for (const StreamMoment& moment : figure.moments) {
    const auto [least, most] =
        std::minmax_element(moment.first_token.begin(), moment.first_token.end());
    fmt::print(
        "  after {:>6} frames, {:>8} rows a layer: first token {:.1f} ms ({:.1f} to {:.1f}), then "
        "{:.2f} ms a token; {} on the GPU, {} in memory, {} in a file\n",
        moment.frames, moment.rows, median(moment.first_token) * 1e3, *least * 1e3, *most * 1e3,
        moment.token_seconds * 1e3, human_bytes(moment.bytes.device),
        human_bytes(moment.bytes.host), human_bytes(moment.bytes.disk));
    if (moment.fetched.wanted == 0) continue;
    const auto late = static_cast<double>(moment.fetched.late);
    fmt::print("    {} of rows wanted from the file, {:.0f} % of them in memory by then\n",
               human_bytes(moment.fetched.wanted),
               100 * (1 - late / static_cast<double>(moment.fetched.wanted)));
  }
  fmt::print(
      "  while answering {:.0f} frames/s; a question that comes as a group begins has its first "
      "token after {:.1f} ms\n",
      figure.busy_frames_per_second, median(figure.busy_first_token) * 1e3);
  if (!settings.file.empty()) print_reopened(figure);
  std::fflush(stdout);
}

int bench_stream_command(const StreamFlags& flags) {
  if (!flags.random_weights) {
    throw Error(ErrorKind::usage, "bench stream measures shapes: give --random-weights");
  }
  if (flags.shape != "qwen2.5-vl-7b" && flags.shape != "qwen2.5-vl-3b" &&
      flags.shape != "bundled") {
    throw Error(ErrorKind::usage, "unknown shape '" + flags.shape +
                                      "': give qwen2.5-vl-7b, qwen2.5-vl-3b or bundled");
  }
  std::vector<std::string> memories = flags.memories;
  if (memories.empty()) {
    memories = {"mosaic:rows=8192,window=2048,gpu=16384",
                "frame-retrieval:rows=8192,window=2048,gpu=16384", "compact:rows=8192"};
  }
  for (const std::string& memory : memories) check_policy("--memory", memory_point(), memory);
  // A file that cannot be written is better known now than after an hour of frames.
  if (!flags.settings.file.empty()) const ArchiveWriter tried(flags.settings.file);
  const ThreadPool threads;
  Device device = Device::cpu();
  if (flags.device != "auto") {
    device = parse_device(flags.device);
  } else if (!cuda_devices().empty()) {
    device = Device::cuda();
  }
  const Context context(threads, device);
  const std::string directory = find_model("");
  const ConfigFiles shape = flags.shape == "bundled" ? ConfigFiles::read(real_files(), directory)
                                                     : model_shape(flags.shape).config;
  const std::unique_ptr<Model> model =
      random_model(context, real_files(), directory, flags.shape, shape);
  const StreamSettings& settings = flags.settings;
  const std::string where =
      device.is_cpu() ? "the CPU" : cuda_devices()[static_cast<size_t>(device.index)].name;
  nlohmann::json out = {{"shape", flags.shape},
                        {"device", where},
                        {"frames", settings.frames},
                        {"fps", settings.fps},
                        {"side", settings.side},
                        {"frames_per_group", settings.frames_per_group},
                        {"question_tokens", settings.question_tokens}};
  if (!flags.json) {
    fmt::print(
        "{} on {}, random weights; {} frames of {}x{} at {} a second, in groups of {}; questions "
        "of {} tokens\n",
        flags.shape, where, settings.frames, settings.side, settings.side, settings.fps,
        settings.frames_per_group, settings.question_tokens);
  }
  if (!device.is_cpu()) {
    RowLayout layout = model->info().rows;
    layout.dtype = DType::bf16;
    for (const int64_t run : {int64_t{1}, int64_t{32}, int64_t{128}}) {
      const double rate = gather_bandwidth(context, layout, 8192, run);
      out["gather_gb_per_s"].push_back({{"rows_together", run}, {"rate", rate / 1e9}});
      if (!flags.json) {
        fmt::print("8,192 rows collected from the computer's memory, {} together: {:.1f} GB/s\n",
                   run, rate / 1e9);
      }
    }
  }
  for (const std::string& memory : memories) {
    const StreamFigure figure = bench_stream(context, *model, memory, settings);
    out["memories"].push_back(to_json(figure, settings));
    if (!flags.json) print_figure(figure, settings);
  }
  if (flags.json) fmt::print("{}\n", json_text(out));
  return 0;
}

}  // namespace

void add_bench_stream(CommandLine& line, CLI::App& bench) {
  const auto flags = std::make_shared<StreamFlags>();
  StreamSettings& settings = flags->settings;
  CLI::App* stream = bench.add_subcommand(
      "stream", "Measure a stream of frames into a memory, and questions about it");
  stream
      ->add_option("--shape", flags->shape,
                   "qwen2.5-vl-7b, qwen2.5-vl-3b, or bundled: that of the bundled model")
      ->capture_default_str();
  stream->add_flag("--random-weights", flags->random_weights, "Make the weights up");
  stream->add_option("--device", flags->device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  stream
      ->add_option("--memory", flags->memories,
                   "A memory with its settings; may be given several times")
      ->expected(1)
      ->take_all()
      ->type_name("MEMORY");
  stream->add_option("--frames", settings.frames, "Of the stream")
      ->capture_default_str()
      ->check(whole(1));
  stream->add_option("--fps", settings.fps, "Frames a second")
      ->capture_default_str()
      ->check(above_zero());
  stream->add_option("--side", settings.side, "Of a frame, in pixels")
      ->capture_default_str()
      ->check(whole(28));
  stream->add_option("--frames-per-group", settings.frames_per_group, "Taken in together")
      ->capture_default_str()
      ->check(whole(1));
  stream->add_option("--question-tokens", settings.question_tokens, "Of each question")
      ->capture_default_str()
      ->check(whole(2));
  stream->add_option("--answer-tokens", settings.answer_tokens, "Of each answer")
      ->capture_default_str()
      ->check(whole(1));
  stream->add_option("--questions", settings.questions, "At each moment")
      ->capture_default_str()
      ->check(whole(1));
  stream
      ->add_option("--moments", settings.moments,
                   "At which questions are asked: at the end, half way, a quarter of the way, …")
      ->capture_default_str()
      ->check(whole(1));
  stream
      ->add_option("--reopen", settings.file,
                   "Save each memory to this file in the end and ask it after opening it again")
      ->type_name("FILE");
  stream->add_flag("--json", flags->json, "Print JSON");
  stream->footer(
      "Examples:\n"
      "  kinora bench stream --random-weights\n"
      "  kinora bench stream --random-weights --frames 3600 --memory mosaic:window=2048,gpu=16384\n"
      "  kinora bench stream --random-weights --moments 1 --reopen /tmp/hour.kinora\n"
      "  kinora bench stream --random-weights --shape bundled --device cpu --side 112 --frames 64");
  stream->callback(
      [&line, flags] { line.action = [flags] { return bench_stream_command(*flags); }; });
}

}  // namespace kinora::cli
