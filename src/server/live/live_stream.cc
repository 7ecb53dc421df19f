#include "server/live/live_stream.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "draw/png_file.h"

namespace kinora::server {
namespace {

using Clock = std::chrono::steady_clock;

// Frames taken in before others get their turn.
constexpr int64_t frames_at_once = 16;
constexpr double longest_pause = 60;
constexpr std::chrono::seconds patience{5};  // of a question, for the first frame

}  // namespace

LiveStream::LiveStream(const Engine& engine, const SessionOptions& options, StreamSource source,
                       const InputOptions& input, int64_t max_bytes)
    : source_(std::move(source)),
      max_bytes_(max_bytes),
      options_(options),
      session_(std::make_unique<SessionState>(EngineAccess::state(engine), options)),
      thread_([this, input] { run(input); }) {}

LiveStream::~LiveStream() {
  stop_.cancel();
  changed_.notify_all();
  thread_.join();
  session_ = nullptr;  // its threads show frames
}

StreamStatus LiveStream::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void LiveStream::wait_until_open(double seconds, const CancelToken& cancel) const {
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(seconds));
  std::unique_lock lock(mutex_);
  while (status_.state == "waiting" && Clock::now() < end) {
    cancel.check();
    changed_.wait_for(lock, std::chrono::milliseconds(50));
  }
  if (failure_) throw *failure_;
}

void LiveStream::fail(std::exception_ptr failure) {
  try {
    std::rethrow_exception(failure);
  } catch (...) {
    ApiError error = current_error();
    if (error.code == "cancelled") return;
    const std::lock_guard lock(mutex_);
    if (!failure_ && source_.cause) failure_ = source_.cause();
    if (!failure_) {
      std::string text = error.what();
      for (size_t at = text.find(source_.source); at != std::string::npos;
           at = text.find(source_.source, at + source_.name.size())) {
        text.replace(at, source_.source.size(), source_.name);
      }
      failure_ = ApiError(error.status, error.code, text, error.param);
    }
    status_.state = "failed";
    status_.error = failure_->what();
    changed_.notify_all();
  }
}

void LiveStream::open(const InputOptions& input) {
  VisualRequest request;
  request.source = source_.source;
  request.frames = input.frames;
  request.limits = {input.min_pixels, input.max_pixels};
  request.keep_index = false;
  request.coming.speed = source_.speed;
  request.coming.drops = source_.drops;
  request.coming.closes = !source_.comes_back;
  request.coming.show = [this](const FrameGroup& frames) {
    const ConstTensorView last = frames.pixels.view()[frames.frames() - 1];
    Tensor copy(DType::u8, {frames.height(), frames.width(), 3});
    std::memcpy(copy.view().raw(), last.raw(), static_cast<size_t>(last.bytes()));
    const std::lock_guard lock(mutex_);
    newest_ = std::move(copy);
  };
  const std::lock_guard turn(session_mutex_);
  session_->open(request, stop_);
  if (source_.opened) source_.opened();
  const std::lock_guard lock(mutex_);
  if (status_.state == "waiting") status_.state = "live";
  changed_.notify_all();
}

// With the session's lock held.
void LiveStream::take_in(const CancelToken& cancel) {
  const TakenIn taken = session_->take_in(0, cancel, frames_at_once);
  const MemoryBytes bytes = session_->bytes();
  const std::lock_guard lock(mutex_);
  status_.frames += taken.frames;
  status_.dropped += taken.dropped;
  status_.tokens += taken.tokens;
  if (taken.frames > 0) status_.until = taken.until;
  status_.bytes = bytes;
  if (taken.ended && status_.state == "live") status_.state = "ended";
  changed_.notify_all();
}

// Opens a source again that broke off, after a pause that grows.
bool LiveStream::try_again() {
  if (Clock::now() < when_) return true;
  const std::lock_guard turn(session_mutex_);
  try {
    session_->resume(stop_);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::cancelled) return false;
    pause_ = std::min(longest_pause, 2 * pause_);
    when_ = Clock::now() +
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(pause_));
    return true;
  }
  pause_ = 1;
  const std::lock_guard lock(mutex_);
  status_.state = "live";
  status_.error.clear();
  return true;
}

// One round; false when there is nothing more to do.
bool LiveStream::step() {
  const StreamStatus before = status();
  if (before.state == "away") return try_again();
  std::string why;
  try {
    const std::lock_guard turn(session_mutex_);
    take_in(stop_);
  } catch (const Error& error) {
    const bool broken = error.kind() == ErrorKind::network || error.kind() == ErrorKind::bad_input;
    if (!source_.comes_back || !broken) throw;
    why = error.what();
  }
  const std::lock_guard lock(mutex_);
  if (status_.bytes.held() > max_bytes_) {
    throw Error(ErrorKind::resource,
                source_.name + " has used up its share of memory: stop it, or look less often");
  }
  const bool ended = status_.state != "live";
  if (!ended && why.empty()) return true;
  if (!source_.comes_back || status_.state == "failed") return false;
  status_.state = "away";
  status_.error = why.empty() ? "it ended" : why;
  when_ = Clock::now() + std::chrono::seconds(1);
  return true;
}

void LiveStream::run(const InputOptions& input) {
  try {
    while (source_.ready && !source_.ready()) {
      stop_.check();
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(20), [&] { return stop_.cancelled(); });
    }
    open(input);
    while (!stop_.cancelled()) {
      const int64_t frames = status().frames;
      if (!step()) break;
      if (askers_ == 0 && status().frames > frames) continue;
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(20), [&] { return stop_.cancelled(); });
      while (askers_ > 0 && !stop_.cancelled()) {
        changed_.wait_for(lock, std::chrono::milliseconds(20));
      }
    }
  } catch (...) {
    fail(std::current_exception());
  }
  if (source_.ended && !stop_.cancelled()) source_.ended(status().error);
}

template <typename Work>
auto LiveStream::in_turn(const CancelToken& cancel, const Work& work) {
  {
    const auto end = Clock::now() + patience;
    std::unique_lock lock(mutex_);
    while (status_.frames == 0 && !failure_ && status_.state != "ended" && Clock::now() < end) {
      cancel.check();
      changed_.wait_for(lock, std::chrono::milliseconds(50));
    }
    if (status_.frames == 0) {
      if (failure_) throw *failure_;
      throw ApiError(409, "stream_empty", source_.name + " has not shown a frame yet");
    }
  }
  struct Asking {
    std::atomic<int>& count;
    explicit Asking(std::atomic<int>& counted) : count(counted) { ++count; }
    ~Asking() { --count; }
  } asking(askers_);
  const std::lock_guard turn(session_mutex_);
  return work();
}

Told LiveStream::ask(const Question& question, const OnPiece& on_piece) {
  if (question.looks.size() != 1) {
    throw bad_request("messages", "a stream is asked about alone, without other videos");
  }
  std::vector<Turn> turns = question.turns;
  const bool has_system = turns.front().role == "system";
  const Turn system{"system", {{Modality::text, options_.system}}};
  if (!has_system && !options_.system.empty()) turns.insert(turns.begin(), system);
  const size_t shown = turns.front().role == "system" ? 1 : 0;
  const bool first = shown < turns.size() && !turns[shown].parts.empty() &&
                     turns[shown].parts.front().modality != Modality::text;
  const bool same = !has_system || (turns.front().parts.size() == 1 &&
                                    turns.front().parts[0].text == options_.system);
  if (!first || !same) {
    throw bad_request("messages",
                      "the stream must be the first thing in the first message, after the system "
                      "prompt that it was started with, if any");
  }
  const CancelToken& cancel = question.generate.cancel;
  return in_turn(cancel, [&] {
    try {
      if (status().state == "live") take_in(cancel);
    } catch (const Error& error) {
      // What came before can be asked about; what may come back the thread opens again.
      if (error.kind() == ErrorKind::cancelled) throw;
      if (!source_.comes_back) fail(std::current_exception());
    }
    Told told;
    const Turn asked = turns.back();
    session_->adopt({turns.begin(), turns.end() - 1});
    const FetchCounts fetched = session_->fetched();
    told.answer = session_->ask(asked.parts, question.generate, on_piece, {question.evidence});
    describe_inputs(*session_, told);
    told.fetched = fetched_since(fetched, *session_);
    return told;
  });
}

MemoryFile LiveStream::save(const std::string& path, const CancelToken& cancel) {
  return in_turn(cancel, [&] { return session_->save(path, cancel); });
}

std::string LiveStream::picture() const {
  Tensor frame;
  {
    const std::lock_guard lock(mutex_);
    frame = newest_;
  }
  if (!frame.defined()) return "";
  const auto width = static_cast<int>(frame.size(1)), height = static_cast<int>(frame.size(0));
  return encode_png(frame.data<uint8_t>(), width, height, static_cast<size_t>(width) * 3, 6);
}

}  // namespace kinora::server
