// kinora's side of bench/decode/run: opens a file, samples it, takes all frames, and prints one
// line of JSON. With --independent N it measures the ceiling instead: N decoders of one thread
// each, side by side, every one with its own part of the file and nothing shared. With --cancel N
// it cancels at N random moments and measures how long everything takes to end. With --profile it
// says where the CPU seconds go and what of them no program could save.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "stage_costs.h"
#include "video/video.h"

namespace kinora {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double peak_megabytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Request {
  std::string file;
  double every = 1;  // seconds
  int size = 448;
  int threads = 0;
  int independent = 0;
  int cancel = 0;
  bool profile = false;
  std::string filter = "bicubic";
};

ReadOptions read_options(const Request& request, int threads) {
  ReadOptions options;
  options.target_size = [size = request.size](FrameSize, int64_t) { return FrameSize{size, size}; };
  options.filter = *parse_resize_filter(request.filter);
  options.threads = threads;
  options.frames_per_group = 16;
  return options;
}

void measure(const Request& request) {
  const double baseline = peak_megabytes();
  const double start = now();
  const auto video = open_video(request.file);
  const auto samples = video->sample(FrameChoice::rate(1 / request.every));
  const double indexed = now() - start;
  const auto wanted = static_cast<int64_t>(samples.size());
  FrameStream stream = video->read(samples, read_options(request, request.threads));
  double first = 0;
  int64_t frames = 0;
  while (const auto group = stream.next()) {
    frames += group->frames();
    if (first == 0 && (frames >= 16 || frames == wanted)) first = now() - start;
  }
  const double total = now() - start;
  const ReadReport report = stream.report();
  fmt::print(
      "{{\"seconds\": {:.6f}, \"first\": {:.6f}, \"frames\": {}, \"peak_mb\": {:.1f}, "
      "\"baseline_mb\": {:.1f}, \"cpu\": {:.3f}, \"index\": {:.6f}, \"convert\": {:.3f}, "
      "\"decoded\": {}, \"skipped\": {}, \"seeks\": {}, \"workers\": {}}}\n",
      total, first, frames, peak_megabytes(), baseline, cpu_seconds(), indexed,
      report.convert_seconds, report.decoded_packets, report.skipped_packets, report.seeks,
      report.workers);
}

void print_profile(const Request& request) {
  const double before = cpu_seconds();
  const double start = now();
  int threads = request.threads;
  {
    const auto video = open_video(request.file);
    FrameStream stream =
        video->read(FrameChoice::rate(1 / request.every), read_options(request, threads));
    while (stream.next()) {
    }
  }
  const double seconds = now() - start;
  const double cpu = cpu_seconds() - before;
  if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  const StageCosts costs = measure_stages(request.file, request.every, request.size,
                                          *parse_resize_filter(request.filter));
  const double cores = threads;
  fmt::print("{}, every {} s, {} samples\n", request.file, request.every, costs.samples);
  fmt::print("  read by kinora, {} threads        {:8.3f} s, {:.3f} CPU s, cores busy {:.0f} %\n",
             threads, seconds, cpu, 100 * cpu / (cores * seconds));
  fmt::print("CPU seconds by stage, one thread:\n");
  const auto line = [&](const char* stage, double value) {
    fmt::print("  {:<32}  {:8.3f}  {:5.1f} %\n", stage, value,
               100 * value / (costs.index + costs.read + costs.decode + costs.convert));
  };
  line("index", costs.index);
  line("reading needed packets", costs.read);
  line("FFmpeg's decoder, needed packets", costs.decode);
  line("conversion and resize", costs.convert);
  fmt::print(
      "  {} of {} packets are needed; decoding all takes {:.3f} CPU s, {:.2f} times as much\n",
      costs.needed, costs.all, costs.decode_all, costs.decode_all / costs.decode);
  fmt::print("floor, decoding alone on all cores:   {:8.3f} s; kinora takes {:.2f} times that\n",
             costs.decode / cores, seconds / (costs.decode / cores));
  fmt::print("decoding everything on all cores:     {:8.3f} s; {:.2f} times what kinora takes\n",
             costs.decode_all / cores, costs.decode_all / cores / seconds);
}

void measure_independent(const Request& request) {
  // Parts of equal numbers of samples, found before the clock starts.
  const auto samples = open_video(request.file)->sample(FrameChoice::rate(1 / request.every));
  const auto count = static_cast<int64_t>(samples.size());
  const int parts = request.independent;
  const double baseline = peak_megabytes();
  const double start = now();
  std::vector<int64_t> frames(static_cast<size_t>(parts), 0);
  std::vector<std::exception_ptr> failures(static_cast<size_t>(parts));
  {
    std::vector<std::jthread> workers;
    for (int part = 0; part < parts; ++part)
      workers.emplace_back([&, part] {
        const auto at = static_cast<size_t>(part);
        try {
          const std::vector<SampledFrame> own(samples.begin() + count * part / parts,
                                              samples.begin() + count * (part + 1) / parts);
          if (own.empty()) return;
          const auto video = open_video(request.file);
          FrameStream stream = video->read(own, read_options(request, 1));
          while (const auto group = stream.next()) frames[at] += group->frames();
        } catch (...) {
          failures[at] = std::current_exception();
        }
      });
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  int64_t total = 0;
  for (const int64_t part : frames) total += part;
  fmt::print(
      "{{\"seconds\": {:.6f}, \"first\": 0, \"frames\": {}, \"peak_mb\": {:.1f}, "
      "\"baseline_mb\": {:.1f}, \"cpu\": {:.3f}}}\n",
      now() - start, total, peak_megabytes(), baseline, cpu_seconds());
}

// One read that is cancelled after `delay` seconds. Seconds from then until the caller has its
// error back, and until all threads and memory are gone too; nothing when the read ended before.
struct CancelTimes {
  double answered = 0;
  double released = 0;
};
std::optional<CancelTimes> cancel_after(const Request& request, double delay) {
  ReadOptions options = read_options(request, request.threads);
  OpenOptions open;
  open.cancel = options.cancel;
  double cancelled = 0;
  std::optional<CancelTimes> times;
  {
    const std::jthread canceller([&, cancel = options.cancel] {
      std::this_thread::sleep_for(std::chrono::duration<double>(delay));
      cancelled = now();
      cancel.cancel();
    });
    double answered = 0;
    try {
      const auto video = open_video(request.file, open);
      FrameStream stream = video->read(FrameChoice::rate(1 / request.every), options);
      try {
        while (stream.next()) {
        }
      } catch (const Error&) {
        answered = now();
        throw;
      }
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::cancelled) throw;
      const double released = now();
      times = {answered > 0 ? answered : released, released};
    }
  }
  if (times) times = {times->answered - cancelled, times->released - cancelled};
  return times;
}

void measure_cancel(const Request& request) {
  const double start = now();
  {
    const auto video = open_video(request.file);
    FrameStream stream =
        video->read(FrameChoice::rate(1 / request.every), read_options(request, request.threads));
    while (stream.next() && now() - start < 1.0) {
    }
  }
  const double whole = now() - start;
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  // Later moments are like those in the middle.
  std::uniform_real_distribution<double> moment(0, std::min(whole, 1.0));
  std::vector<double> answered;
  std::vector<double> released;
  for (int i = 0; i < request.cancel; ++i) {
    const auto times = cancel_after(request, moment(random));
    if (!times) continue;
    answered.push_back(1e3 * times->answered);
    released.push_back(1e3 * times->released);
  }
  if (answered.empty()) throw Error(ErrorKind::usage, "too short to be cancelled");
  std::sort(answered.begin(), answered.end());
  std::sort(released.begin(), released.end());
  fmt::print(
      "{{\"cancelled\": {}, \"seed\": {}, \"answered_ms_median\": {:.1f}, \"answered_ms_max\": "
      "{:.1f}, \"released_ms_median\": {:.1f}, \"released_ms_max\": {:.1f}, \"whole_ms\": "
      "{:.0f}}}\n",
      answered.size(), seed, answered[answered.size() / 2], answered.back(),
      released[released.size() / 2], released.back(), 1e3 * whole);
}

int run(int argc, char** argv) {
  Request request;
  CLI::App app{"Decodes sampled frames of a video and prints the time it took"};
  app.add_option("file", request.file)->required();
  app.add_option("--every", request.every, "Seconds between samples")->check(CLI::PositiveNumber);
  app.add_option("--size", request.size, "Side of the square frames")->check(CLI::PositiveNumber);
  app.add_option("--threads", request.threads, "0: one per core");
  app.add_option("--filter", request.filter)
      ->check(CLI::IsMember({"bicubic", "area", "bilinear", "nearest"}));
  app.add_option("--independent", request.independent,
                 "Measure this many independent one-thread decoders instead");
  app.add_option("--cancel", request.cancel, "Cancel at this many random moments instead");
  app.add_flag("--profile", request.profile, "Print what each stage costs instead");
  CLI11_PARSE(app, argc, argv);
  if (request.profile)
    print_profile(request);
  else if (request.cancel > 0)
    measure_cancel(request);
  else if (request.independent > 0)
    measure_independent(request);
  else
    measure(request);
  return 0;
}

}  // namespace
}  // namespace kinora

int main(int argc, char** argv) {
  try {
    return kinora::run(argc, argv);
  } catch (const kinora::Error& error) {
    fmt::print(stderr, "bench_decode: {}\n", error.what());
    return kinora::exit_code(error.kind());
  }
}
