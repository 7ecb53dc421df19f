#include "server/shelf.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/files/content_key.h"
#include "server/api_error.h"

namespace kinora::server {
namespace {

constexpr size_t most_talks = 1024;
constexpr std::chrono::seconds longest_wait{30};  // for memory

std::string look_key(const Look& look) {
  const FrameChoice& frames = look.options.frames;
  return fmt::format("{} {} {} {} {} {} {} {} {}", look.media->key, static_cast<int>(frames.way),
                     frames.fps, frames.count, frames.start, frames.end, look.options.min_pixels,
                     look.options.max_pixels, look.options.folder_fps);
}

// Messages from below name what was opened; people know it by another name.
[[noreturn]] void rethrow_named(const Error& error, const std::vector<Look>& looks) {
  std::string text = error.what();
  for (const Look& look : looks) {
    const std::string& source = look.media->source;
    for (size_t at = text.find(source); at != std::string::npos;
         at = text.find(source, at + look.media->name.size())) {
      text.replace(at, source.size(), look.media->name);
    }
  }
  throw Error(error.kind(), text, error.hint());
}

VisualRequest request_of(const Look& look) {
  VisualRequest request;
  request.source = look.media->source;
  request.frames = look.options.frames;
  request.limits = {look.options.min_pixels, look.options.max_pixels};
  request.folder_fps = look.options.folder_fps;
  request.keep_index = false;
  return request;
}

}  // namespace

// Passes progress of a session on to whoever asks just now.
struct Shelf::Watcher {
  std::mutex mutex;
  OnProgress target;

  OnProgress pass_on(const std::shared_ptr<Watcher>& self) const {
    return [self](std::string_view stage, int64_t done, int64_t total) {
      const std::lock_guard lock(self->mutex);
      if (self->target) self->target(stage, done, total);
    };
  }
  void set(OnProgress wanted) {
    const std::lock_guard lock(mutex);
    target = std::move(wanted);
  }
};

// After part `part` of turn `turn`, or with no parts left, after the whole turn.
struct Shelf::Place {
  std::string key;
  size_t turn = 0;
  size_t part = 0;   // one past it
  size_t looks = 0;  // so far
  bool visual = false;
};

struct Shelf::Base {
  std::mutex forking;
  std::unique_ptr<SessionState> session;
  std::vector<MediaPtr> media;
  std::exception_ptr failure;
  bool ready = false;
  int64_t bytes = 0;
  int64_t tokens = 0;
  uint64_t used_at = 0;
};

struct Shelf::Talk {
  std::shared_ptr<Watcher> watcher = std::make_shared<Watcher>();
  std::unique_ptr<SessionState> session;
  std::shared_ptr<Base> base;  // whose rows it shares; null: none
  std::vector<MediaPtr> media;
  size_t looks = 0;   // inputs in the session
  int64_t bytes = 0;  // as counted on the shelf
  uint64_t used_at = 0;
};

// Sets the target for a while.
class Shelf::Watching {
 public:
  Watching(Watcher& watcher, const OnProgress& target) : watcher_(watcher) { watcher.set(target); }
  ~Watching() { watcher_.set(nullptr); }
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;

 private:
  Watcher& watcher_;
};

// Bytes that a question will need, taken before it is worked on.
class Shelf::Reservation {
 public:
  Reservation(Shelf& shelf, int64_t bytes, const CancelToken& cancel) : shelf_(shelf) {
    std::unique_lock lock(shelf_.mutex_);
    if (bytes > shelf_.max_bytes_) {
      throw ApiError(400, "context_length_exceeded",
                     fmt::format("this needs {} bytes of keys and values, the server has {} for "
                                 "all; look at fewer or smaller frames",
                                 bytes, shelf_.max_bytes_));
    }
    const auto begin = std::chrono::steady_clock::now();
    while (shelf_.used_ + bytes > shelf_.max_bytes_) {
      if (shelf_.evict_one()) continue;
      cancel.check();
      // Two that each hold what the other needs would wait for ever.
      if (std::chrono::steady_clock::now() - begin > longest_wait) {
        ApiError busy(503, "memory_busy", "other requests use the memory that this one needs");
        busy.retry_after = 5;
        throw busy;
      }
      shelf_.changed_.wait_for(lock, std::chrono::milliseconds(50));
    }
    shelf_.used_ += bytes;
    bytes_ = bytes;
  }
  ~Reservation() { resize(0); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // What is on the shelf from now on is counted there.
  void resize(int64_t bytes) {
    const std::lock_guard lock(shelf_.mutex_);
    shelf_.used_ += bytes - bytes_;
    bytes_ = bytes;
    shelf_.changed_.notify_all();
  }
  void hand_over() { bytes_ = 0; }

 private:
  Shelf& shelf_;
  int64_t bytes_ = 0;
};

Shelf::Shelf(const Engine& engine, const SessionOptions& options, int64_t max_bytes)
    : engine_(engine), options_(options), max_bytes_(max_bytes) {
  options_.progress = nullptr;
  // Refuses at once what could not be shared.
  SessionState session(EngineAccess::state(engine_), options_);
  session.fork();
  token_bytes_ = session.layout().bytes_per_token();
}

Shelf::~Shelf() {
  talks_.clear();  // before the bases that count their rows
}

std::vector<Shelf::Place> Shelf::places_of(const Question& question) {
  std::vector<Place> places;
  ContentKey key("talk");
  size_t looks = 0;
  const auto add = [&](std::string_view kind, std::string_view text) {
    key.add(kind.data(), kind.size());
    key.add(text.data(), text.size());
  };
  for (size_t i = 0; i < question.turns.size(); ++i) {
    const Turn& turn = question.turns[i];
    add("role", turn.role);
    for (size_t k = 0; k < turn.parts.size(); ++k) {
      const bool visual = turn.parts[k].modality != Modality::text;
      add(visual ? "look" : "text", visual ? look_key(question.looks[looks]) : turn.parts[k].text);
      looks += visual;
      places.push_back({key.text(), i, k + 1, looks, visual});
    }
    add("end", "");
    places.push_back({key.text(), i, turn.parts.size(), looks, false});
  }
  return places;
}

bool Shelf::evict_one() {
  auto oldest_talk = talks_.end();
  for (auto it = talks_.begin(); it != talks_.end(); ++it) {
    if (oldest_talk == talks_.end() || it->second->used_at < oldest_talk->second->used_at) {
      oldest_talk = it;
    }
  }
  auto oldest_base = bases_.end();
  for (auto it = bases_.begin(); it != bases_.end(); ++it) {
    const bool in_use = it->second.use_count() > 1 || !it->second->ready;
    if (in_use) continue;
    if (oldest_base == bases_.end() || it->second->used_at < oldest_base->second->used_at) {
      oldest_base = it;
    }
  }
  const bool has_talk = oldest_talk != talks_.end(), has_base = oldest_base != bases_.end();
  if (!has_talk && !has_base) return false;
  if (has_talk && (!has_base || oldest_talk->second->used_at < oldest_base->second->used_at)) {
    used_ -= oldest_talk->second->bytes;
    talks_.erase(oldest_talk);
  } else {
    used_ -= oldest_base->second->bytes;
    bases_.erase(oldest_base);
  }
  return true;
}

void Shelf::read_base(Base& base, const Question& question, const Place& place,
                      const OnProgress& on_progress, Told& told) {
  SessionOptions options = options_;
  const auto watcher = std::make_shared<Watcher>();
  options.progress = watcher->pass_on(watcher);
  const Watching watching(*watcher, on_progress);
  auto session = std::make_unique<SessionState>(EngineAccess::state(engine_), options);
  for (size_t i = 0; i < place.looks; ++i) {
    session->add(request_of(question.looks[i]), question.generate.cancel);
    base.media.push_back(question.looks[i].media);
  }
  const auto at = question.turns.begin() + static_cast<int64_t>(place.turn);
  session->adopt({question.turns.begin(), at});
  const std::vector<ContentPart> parts(at->parts.begin(),
                                       at->parts.begin() + static_cast<int64_t>(place.part));
  std::vector<ContentPart> question_parts = parts;
  question_parts.push_back({Modality::text, "?"});
  const Forecast forecast = session->forecast(question_parts);
  Reservation reservation(*this, forecast.row_bytes, question.generate.cancel);
  const Answer read = session->prepare(parts, question.generate.cancel);
  base.tokens = read.prompt_tokens;
  told.frames_read += read.frames;
  told.decode_seconds += read.timings.decode;
  base.bytes = session->bytes().total();
  reservation.resize(base.bytes);
  reservation.hand_over();
  base.session = std::move(session);
}

std::shared_ptr<Shelf::Base> Shelf::base_for(const Question& question,
                                             const std::vector<Place>& places,
                                             const OnProgress& on_progress, Told& told) {
  const auto last =
      std::find_if(places.rbegin(), places.rend(), [](const Place& place) { return place.visual; });
  if (last == places.rend()) return nullptr;
  const CancelToken& cancel = question.generate.cancel;
  std::shared_ptr<Base> base;
  {
    std::unique_lock lock(mutex_);
    while (true) {
      std::shared_ptr<Base>& known = bases_[last->key];
      if (known == nullptr) {  // this question reads it
        base = known = std::make_shared<Base>();
        ++report_.misses;
        break;
      }
      base = known;
      // Another question reads it just now. If that one is cancelled, the next in line goes on.
      while (!base->ready && base->failure == nullptr) {
        cancel.check();
        changed_.wait_for(lock, std::chrono::milliseconds(50));
      }
      if (base->ready) {
        base->used_at = ++clock_;
        ++report_.hits;
        return base;
      }
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  try {
    read_base(*base, question, *last, on_progress, told);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    base->failure = std::current_exception();
    bases_.erase(last->key);
    changed_.notify_all();
    throw;
  }
  told.cached_tokens -= base->tokens;
  told.read_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::lock_guard lock(mutex_);
  base->ready = true;
  base->used_at = ++clock_;
  changed_.notify_all();
  return base;
}

std::unique_ptr<Shelf::Talk> Shelf::take_talk(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = talks_.find(key);
  if (found == talks_.end()) return nullptr;
  std::unique_ptr<Talk> talk = std::move(found->second);
  talks_.erase(found);
  return talk;
}

int64_t Shelf::own_bytes(const Talk& talk) const {
  const int64_t shared = talk.base != nullptr ? talk.base->bytes : 0;
  return std::max<int64_t>(0, talk.session->bytes().total() - shared);
}

void Shelf::keep_talk(std::unique_ptr<Talk> talk, const Question& question, const Answer& answer) {
  Question said = question;
  said.turns.push_back({"assistant", {{Modality::text, answer.text}}});
  const std::string key = places_of(said).back().key;
  const std::lock_guard lock(mutex_);
  used_ -= talk->bytes;
  talk->bytes = own_bytes(*talk);
  used_ += talk->bytes;
  talk->used_at = ++clock_;
  if (const auto same = talks_.find(key); same != talks_.end()) {
    used_ -= same->second->bytes;
    talks_.erase(same);
  }
  talks_.emplace(key, std::move(talk));
  while (talks_.size() > most_talks || used_ > max_bytes_) {
    if (!evict_one()) break;
  }
  changed_.notify_all();
}

Told Shelf::ask(const Question& question, const OnPiece& on_piece,
                const OnProgress& on_progress) try {
  Told told;
  const std::vector<Place> places = places_of(question);
  const std::vector<Turn> history(question.turns.begin(), question.turns.end() - 1);
  const Turn& asked = question.turns.back();
  const CancelToken& cancel = question.generate.cancel;
  // The place after the last turn before the question.
  const auto before = std::find_if(places.rbegin(), places.rend(), [&](const Place& place) {
    return place.turn + 1 < question.turns.size();
  });
  std::unique_ptr<Talk> talk;
  if (before != places.rend()) talk = take_talk(before->key);
  if (talk != nullptr) {
    const std::lock_guard lock(mutex_);
    ++report_.hits;
  } else {
    talk = std::make_unique<Talk>();
    talk->base = base_for(question, places, on_progress, told);
    if (talk->base != nullptr) {
      const std::lock_guard forking(talk->base->forking);
      talk->session = talk->base->session->fork(talk->watcher->pass_on(talk->watcher));
      talk->looks = question.looks.size();
    } else {
      SessionOptions options = options_;
      options.progress = talk->watcher->pass_on(talk->watcher);
      talk->session = std::make_unique<SessionState>(EngineAccess::state(engine_), options);
    }
  }
  // Until it is on the shelf again, whatever happens.
  struct Counted {
    Shelf& shelf;
    std::unique_ptr<Talk>& talk;
    ~Counted() {
      if (talk == nullptr) return;
      const std::lock_guard lock(shelf.mutex_);
      shelf.used_ -= talk->bytes;
      shelf.changed_.notify_all();
    }
  } counted{*this, talk};
  SessionState& session = *talk->session;
  std::optional<Watching> watching(std::in_place, *talk->watcher, on_progress);
  for (; talk->looks < question.looks.size(); ++talk->looks) {
    session.add(request_of(question.looks[talk->looks]), cancel);
    talk->media.push_back(question.looks[talk->looks].media);
  }
  session.adopt(history);
  const Forecast forecast = session.forecast(asked.parts);
  const int64_t wanted = question.generate.max_tokens * token_bytes_;
  const int64_t more = std::max<int64_t>(0, forecast.row_bytes - session.bytes().total());
  {
    const Reservation reservation(*this, more + wanted, cancel);
    told.answer = session.ask(asked.parts, question.generate, on_piece, {question.evidence});
  }
  const Answer& answer = told.answer;
  told.prompt_tokens = std::ssize(answer.prompt_ids);
  told.cached_tokens += told.prompt_tokens - answer.prompt_tokens;
  for (const VisualInput& input : session.inputs()) {
    InputInfo info;
    info.kind = modality_name(input.plan.source.modality);
    info.width = input.plan.frame_size.width;
    info.height = input.plan.frame_size.height;
    info.tokens = input.plan.tokens();
    told.visual_tokens += info.tokens;
    for (const SampledFrame& sample : input.samples) info.times.push_back(sample.time);
    told.inputs.push_back(std::move(info));
  }
  watching.reset();
  keep_talk(std::move(talk), question, answer);
  return told;
} catch (const Error& error) {
  rethrow_named(error, question.looks);
}

void Shelf::prepare(const Question& question, const OnProgress& on_progress) try {
  Told unused;
  base_for(question, places_of(question), on_progress, unused);
} catch (const Error& error) {
  rethrow_named(error, question.looks);
}

void Shelf::forget(const std::string& media_key) {
  const std::lock_guard lock(mutex_);
  const auto about = [&](const std::vector<MediaPtr>& media) {
    return std::any_of(media.begin(), media.end(),
                       [&](const MediaPtr& one) { return one->key == media_key; });
  };
  std::erase_if(talks_, [&](const auto& entry) {
    const Talk& talk = *entry.second;
    const bool gone = about(talk.media) || (talk.base != nullptr && about(talk.base->media));
    if (gone) used_ -= talk.bytes;
    return gone;
  });
  std::erase_if(bases_, [&](const auto& entry) {
    const bool gone =
        entry.second->ready && entry.second.use_count() == 1 && about(entry.second->media);
    if (gone) used_ -= entry.second->bytes;
    return gone;
  });
}

Shelf::Report Shelf::report() const {
  const std::lock_guard lock(mutex_);
  Report report = report_;
  report.videos = std::ssize(bases_);
  report.talks = std::ssize(talks_);
  report.bytes = used_;
  report.max_bytes = max_bytes_;
  return report;
}

}  // namespace kinora::server
