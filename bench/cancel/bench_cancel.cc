// How long a session that is cancelled keeps its caller: from the moment another thread cancels to
// the error, while a group is read, while tokens are made, alone and among others, and while it
// waits for another session's group. A Markdown table on standard output.
#include <fmt/format.h>
#include <kinora/session.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "bench/shapes.h"
#include "common/samples.h"
#include "engine/engine_state.h"
#include "model/random_model.h"

namespace kinora::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  std::string model = "models/kinora-tiny";
  std::string shape;
  std::string device = "auto";
  int64_t tokens = 2048;
  int sessions = 8;
  int repetitions = 15;
  int threads = 0;
};

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

class Cancelling {
 public:
  explicit Cancelling(const Settings& settings)
      : settings_(settings),
        engine_(settings.shape.empty()
                    ? Engine({.model = settings.model,
                              .device = settings.device,
                              .threads = settings.threads})
                    : EngineAccess::make(std::make_shared<const EngineState>(
                          settings.device, settings.threads, [&](const Context& context) {
                            return random_model(context, real_files(), settings.model,
                                                settings.shape,
                                                cli::model_shape(settings.shape).config);
                          }))) {
    // Roughly this many tokens of text: a word is one or two.
    Random random(7);
    while (std::ssize(text_) < 4 * settings.tokens) {
      text_ += static_cast<char>('a' + random.below(26));
      text_ += random.below(4) == 0 ? " " : "";
    }
  }

  // Seconds from cancelling to the error. It is cancelled so long after the question, or after the
  // answer has begun. Negative: the answer ended before.
  double once(const std::string& question, double after, bool answering) {
    SessionOptions options;
    options.draft = "none";
    options.max_group_tokens = 0;  // a text is one group
    Session session(engine_, options);
    AnswerOptions how;
    how.temperature = 0;
    how.max_tokens = 1'000'000;
    how.ignore_stop_tokens = true;
    std::atomic<bool> begun = !answering;
    Clock::time_point cancelled;
    std::thread canceller([&, cancel = how.cancel] {
      while (!begun) std::this_thread::yield();
      sleep(after);
      cancelled = Clock::now();
      cancel.cancel();
    });
    double seconds = -1;
    try {
      session.ask(question, how, [&](std::string_view) { begun = true; });
    } catch (const Error& error) {
      const auto now = Clock::now();
      canceller.join();
      if (error.kind() != ErrorKind::cancelled) throw;
      seconds = std::chrono::duration<double>(now - cancelled).count();
    }
    if (canceller.joinable()) canceller.join();
    return seconds;
  }

  void measure() {
    const double group = group_seconds();
    fmt::print("| cancelled | times | until the error, ms: median | max |\n|---|---:|---:|---:|\n");
    row(fmt::format("in a group of {} tokens, which takes {:.0f} ms", group_tokens_, 1e3 * group),
        [&](Random& random) { return once(text_, group * random.uniform(0.05, 0.9), false); });
    row("in a step",
        [&](Random& random) { return once("What?", random.uniform(0.001, 0.05), true); });
    {
      const Others others(*this, "What?");
      row(fmt::format("in a step of {} sessions", settings_.sessions + 1),
          [&](Random& random) { return once("What?", random.uniform(0.001, 0.05), true); });
    }
    const Others others(*this, text_);
    row(fmt::format("waiting for the groups of {} others", settings_.sessions),
        [&](Random& random) { return once(text_, group * random.uniform(0.05, 0.9), false); });
  }

 private:
  // Sessions that ask the same again and again.
  class Others {
   public:
    Others(Cancelling& bench, const std::string& question) {
      for (int i = 0; i < bench.settings_.sessions; ++i) {
        threads_.emplace_back([this, &bench, question] {
          while (!stop_.cancelled()) {
            SessionOptions options;
            options.draft = "none";
            options.max_group_tokens = 0;
            Session session(bench.engine_, options);
            AnswerOptions how;
            how.max_tokens = 64;
            how.ignore_stop_tokens = true;
            how.cancel = stop_;
            try {
              session.ask(question, how);
            } catch (const Error&) {  // the end
            }
          }
        });
      }
      sleep(0.2);
    }
    ~Others() {
      stop_.cancel();
      for (std::thread& thread : threads_) thread.join();
    }

   private:
    CancelToken stop_;
    std::vector<std::thread> threads_;
  };

  double group_seconds() {
    SessionOptions options;
    options.draft = "none";
    options.max_group_tokens = 0;
    AnswerOptions how;
    how.max_tokens = 1;
    double seconds = 0;
    for (int i = 0; i < 2; ++i) {  // the first one fills caches
      Session session(engine_, options);
      const Answer answer = session.ask(text_, how);
      seconds = answer.timings.prefill;
      group_tokens_ = answer.prompt_tokens;
    }
    return seconds;
  }

  void row(const std::string& name, const std::function<double(Random&)>& measured) {
    Random random(11);
    Samples samples;
    double worst = 0;
    while (std::ssize(samples.values()) < settings_.repetitions) {
      const double seconds = measured(random);
      if (seconds < 0) continue;
      samples.add(seconds);
      worst = std::max(worst, seconds);
    }
    fmt::print("| {} | {} | {:.1f} | {:.1f} |\n", name, settings_.repetitions,
               1e3 * samples.summary().median, 1e3 * worst);
    std::fflush(stdout);
  }

  const Settings& settings_;
  const Engine engine_;
  std::string text_;
  int64_t group_tokens_ = 0;
};

int run(int argc, char** argv) {
  Settings settings;
  CLI::App app{"From cancelling to the error"};
  app.add_option("-m,--model", settings.model, "directory of a model");
  app.add_option("--shape", settings.shape, "random weights of this size instead (qwen2.5-vl-7b)");
  app.add_option("--device", settings.device, "auto, cpu, cuda or cuda:N");
  app.add_option("--tokens", settings.tokens, "of a group, about")->check(CLI::Range(16, 100'000));
  app.add_option("--sessions", settings.sessions, "others")->check(CLI::Range(1, 63));
  app.add_option("--repetitions", settings.repetitions, "of each")->check(CLI::Range(1, 1000));
  app.add_option("--threads", settings.threads, "threads to use (0: one a core)");
  CLI11_PARSE(app, argc, argv);
  try {
    Cancelling(settings).measure();
  } catch (const Error& error) {
    fmt::print(stderr, "bench_cancel: {}\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) { return kinora::bench::run(argc, argv); }
