#include <kinora/session.h>

#include <utility>

#include "engine/session_state.h"

namespace kinora {
namespace {

InputInfo describe(const SessionState& state, const VisualInput& input) {
  InputInfo info;
  info.source = input.source;
  info.kind = modality_name(input.plan.source.modality);
  info.width = input.plan.frame_size.width;
  info.height = input.plan.frame_size.height;
  info.tokens = state.visual_tokens(input);
  for (const SampledFrame& sample : input.samples) info.times.push_back(sample.time);
  info.subtitles = std::ssize(input.subtitles);
  if (input.video == nullptr) return info;
  const VideoInfo& video = input.video->info();
  info.sound = video.has_audio;
  for (const SubtitleTrack& track : video.subtitles) {
    if (track.text) info.languages.push_back(track.language);
  }
  return info;
}

GenerateOptions generation(const AnswerOptions& options, const GenerationDefaults& defaults) {
  GenerateOptions out;
  out.sampling.temperature = options.temperature.value_or(defaults.temperature);
  out.sampling.top_k = options.top_k.value_or(defaults.top_k);
  out.sampling.top_p = options.top_p.value_or(defaults.top_p);
  out.sampling.repetition_penalty =
      options.repetition_penalty.value_or(defaults.repetition_penalty);
  out.sampling.min_p = options.min_p;
  out.sampling.seed = options.seed;
  out.max_tokens = options.max_tokens;
  out.stop = options.stop;
  out.ignore_stop_tokens = options.ignore_stop_tokens;
  out.cancel = options.cancel;
  return out;
}

VisualRequest request_of(const std::string& source, const InputOptions& options) {
  VisualRequest request;
  request.source = source;
  request.frames = options.frames;
  request.limits = {options.min_pixels, options.max_pixels};
  request.folder_fps = options.folder_fps;
  request.subtitles = options.subtitles;
  request.keep_index = options.keep_index;
  request.source_limits = video_limits(options.limits);
  request.coming = {options.speed, options.drops, !options.resumes, nullptr};
  return request;
}

}  // namespace

Session::Session(const Engine& engine, const SessionOptions& options)
    : state_(std::make_unique<SessionState>(EngineAccess::state(engine), options)) {}
Session::Session(std::unique_ptr<SessionState> state) : state_(std::move(state)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

InputInfo Session::add(const std::string& source, const InputOptions& options) {
  return describe(*state_, state_->add(request_of(source, options), options.cancel));
}

InputInfo Session::open(const std::string& source, const InputOptions& options) {
  return describe(*state_, state_->open(request_of(source, options), options.cancel));
}

TakenIn Session::take_in(int64_t least_frames, const CancelToken& cancel, int64_t most_frames) {
  return state_->take_in(least_frames, cancel, most_frames);
}

void Session::resume(const CancelToken& cancel) { state_->resume(cancel); }

Answer Session::ask(const std::string& question, const AnswerOptions& options,
                    const std::function<void(std::string_view)>& on_piece) {
  std::vector<QuestionPart> parts(state_->new_inputs());
  parts.push_back({question});
  return ask(parts, options, on_piece);
}

Answer Session::ask(const std::vector<QuestionPart>& parts, const AnswerOptions& options,
                    const std::function<void(std::string_view)>& on_piece) {
  std::vector<ContentPart> content;
  for (const QuestionPart& part : parts) {
    content.push_back(part.text ? ContentPart{Modality::text, *part.text}
                                : ContentPart{Modality::video, ""});
  }
  const GenerateOptions generate = generation(options, state_->model().info().generation);
  return state_->ask(content, generate, on_piece, {options.evidence, nullptr});
}

HeldRows Session::held() const {
  const MemoryBytes bytes = state_->bytes();
  return {bytes.device, bytes.host, bytes.disk};
}

std::vector<InputInfo> Session::inputs() const {
  std::vector<InputInfo> all;
  for (const VisualInput& input : state_->inputs()) all.push_back(describe(*state_, input));
  return all;
}

Forecast Session::forecast(const std::string& question) const {
  std::vector<ContentPart> content(state_->new_inputs(), {Modality::video, ""});
  content.push_back({Modality::text, question});
  return state_->forecast(content);
}

Answer Session::prepare(const CancelToken& cancel) { return state_->prepare(cancel); }

MemoryFile Session::save(const std::string& path, const CancelToken& cancel) {
  return state_->save(path, cancel);
}

std::string Session::memory_key() const { return state_->memory_key(); }

Session Session::reopen(const Engine& engine, const std::string& path,
                        const SessionOptions& options, const CancelToken& cancel) {
  return Session(reopen_session(EngineAccess::state(engine), path, options, cancel));
}

void Session::clear() { state_->clear(); }

}  // namespace kinora
