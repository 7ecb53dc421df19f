#include "bench/overlap_bench.h"

#include <algorithm>
#include <chrono>

#include "base/gpu.h"
#include "engine/engine_state.h"

namespace kinora::cli {
namespace {

bool is_stage(const Span& span, std::string_view stage) { return span.lane == stage; }

// The moments of a run that equation 3 needs.
void read_spans(OverlapRun& run) {
  const std::vector<Span>& spans = run.answer.spans;
  const Span* first = nullptr;
  const Span* last = nullptr;
  for (const Span& span : spans) {
    if (!is_stage(span, "vision")) continue;
    if (first == nullptr || span.begin < first->begin) first = &span;
    if (last == nullptr || span.begin > last->begin) last = &span;
  }
  if (first == nullptr) return;
  run.first_group = first->begin;
  run.last_group = last->end - last->begin;
  double prefilled = 0;
  for (const Span& span : spans) {
    if (!is_stage(span, "prefill")) continue;
    prefilled = std::max(prefilled, span.end);
    if (span.begin >= last->begin) run.last_group += span.end - span.begin;
  }
  run.after_prefill = run.answer.timings.first_token - prefilled;
}

}  // namespace

OverlapRun run_question(const Engine& engine, const OverlapSettings& settings,
                        const std::string& retain, bool overlap) {
  OverlapRun run;
  run.tokens = settings.tokens;
  run.attention = settings.attention;
  run.retain = retain;
  run.snap = settings.snap;
  run.overlap = overlap;
  const Device device = EngineAccess::state(engine)->context.device;
  if (!device.is_cpu()) reset_gpu_peak(device);
  SessionOptions session_options;
  session_options.tokens = settings.tokens;
  session_options.attention = settings.attention;
  session_options.retain = retain;
  session_options.overlap = overlap;
  session_options.frames_per_group = settings.frames_per_group;
  session_options.decode_threads = settings.decode_threads;
  Session session(engine, session_options);
  InputOptions input;
  input.frames = FrameChoice::rate(settings.fps);
  input.frames.snap = settings.snap;
  input.min_pixels = input.max_pixels = settings.pixels;
  input.keep_index = false;
  const auto begin = std::chrono::steady_clock::now();
  run.input = session.add(settings.video, input);
  run.open = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  AnswerOptions answer;
  answer.temperature = 0;
  answer.max_tokens = settings.answer_tokens;
  answer.ignore_stop_tokens = true;
  run.answer = session.ask("What happens in this video?", answer);
  if (!device.is_cpu()) run.gpu_peak_bytes = gpu_memory(device).peak;
  read_spans(run);
  return run;
}

void warm_up(const Engine& engine, const OverlapSettings& settings, const std::string& retain) {
  SessionOptions session_options;
  session_options.tokens = settings.tokens;
  session_options.attention = settings.attention;
  session_options.retain = retain;
  session_options.frames_per_group = settings.frames_per_group;
  Session session(engine, session_options);
  InputOptions input;
  input.frames = FrameChoice::rate(settings.fps);
  input.frames.snap = settings.snap;
  input.min_pixels = input.max_pixels = settings.pixels;
  input.keep_index = false;
  const auto frames = static_cast<int64_t>(session.add(settings.video, input).times.size());
  const int64_t group = settings.frames_per_group;
  const int64_t some = frames <= 4 * group ? frames : 3 * group + frames % group;
  Session short_session(engine, session_options);
  input.frames.end = static_cast<double>(some) / settings.fps - 0.5 / settings.fps;
  short_session.add(settings.video, input);
  AnswerOptions answer;
  answer.max_tokens = 4;
  answer.ignore_stop_tokens = true;
  short_session.ask("What happens in this video?", answer);
}

double overlap_bound(const OverlapRun& apart, const OverlapRun& overlapped) {
  const Timings& times = apart.answer.timings;
  const double decode = times.decode_wait, compute = times.vision + times.prefill;
  return std::max(decode + apart.last_group, compute + overlapped.first_group) + apart.open +
         apart.after_prefill;
}

}  // namespace kinora::cli
