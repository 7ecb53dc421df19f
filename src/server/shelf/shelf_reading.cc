// Reading videos once for all who ask about them.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/files/content_key.h"
#include "server/api_error.h"
#include "server/shelf/shelf_entries.h"

namespace kinora::server {
namespace {

std::string look_key(const Look& look) {
  const FrameChoice& frames = look.options.frames;
  return fmt::format("{} {} {} {} {} {} {} {} {}", look.media->key, static_cast<int>(frames.way),
                     frames.fps, frames.count, frames.start, frames.end, look.options.min_pixels,
                     look.options.max_pixels, look.options.folder_fps);
}

}  // namespace

VisualRequest request_of(const Look& look) {
  VisualRequest request;
  request.source = look.media->source;
  request.frames = look.options.frames;
  request.limits = {look.options.min_pixels, look.options.max_pixels};
  request.folder_fps = look.options.folder_fps;
  request.keep_index = false;
  return request;
}

void add_look(SessionState& session, const Look& look, const CancelToken& cancel) {
  try {
    session.add(request_of(look), cancel);
  } catch (const Error& error) {
    // Nothing has been planned yet that more memory would help.
    if (error.kind() == ErrorKind::resource) {
      throw ApiError(400, "media_too_large", named(error.what(), {look}));
    }
    throw;
  }
}

std::string named(std::string text, const std::vector<Look>& looks) {
  for (const Look& look : looks) {
    const std::string& source = look.media->source;
    for (size_t at = text.find(source); at != std::string::npos;
         at = text.find(source, at + look.media->name.size())) {
      text.replace(at, source.size(), look.media->name);
    }
  }
  return text;
}

void rethrow_named(const Error& error, const std::vector<Look>& looks) {
  throw Error(error.kind(), named(error.what(), looks), error.hint());
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

// A memory is all there is before the first question about it: it was saved that way.
void Shelf::reopen_base(Base& base, const Question& question, const Place& place) {
  const MediaPtr& media = question.looks[0].media;
  if (place.looks != 1 || place.part != 1) {
    throw bad_request("messages", "a memory must be the first thing in the first message");
  }
  Reservation reservation(*this, describe_memory(media->source).bytes, question.generate.cancel);
  base.media.push_back(media);
  base.session = reopen_session(EngineAccess::state(engine_), media->source, options_,
                                question.generate.cancel);
  base.tiers = base.session->bytes();
  base.bytes = base.tiers.total();
  reservation.resize(base.bytes);
  reservation.hand_over();
}

void Shelf::read_base(Base& base, const Question& question, const Place& place,
                      const OnProgress& on_progress, Told& told) {
  if (question.looks[0].media->memory) return reopen_base(base, question, place);
  SessionOptions options = options_;
  // As `adopt` below says, so that what is read can be saved.
  const Turn& opening = question.turns.front();
  const bool instructed = opening.role == "system" && opening.parts.size() == 1;
  options.system = instructed ? opening.parts[0].text : "";
  const auto watcher = std::make_shared<Watcher>();
  options.progress = watcher->pass_on(watcher);
  const Watching watching(*watcher, on_progress);
  auto session = std::make_unique<SessionState>(EngineAccess::state(engine_), options);
  for (size_t i = 0; i < place.looks; ++i) {
    add_look(*session, question.looks[i], question.generate.cancel);
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
  base.tiers = session->bytes();
  base.bytes = base.tiers.total();
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

MemoryFile Shelf::save(const Question& question, const std::string& path) try {
  Told unused;
  const std::shared_ptr<Base> base = base_for(question, places_of(question), nullptr, unused);
  const std::lock_guard forking(base->forking);
  return base->session->save(path, question.generate.cancel);
} catch (const Error& error) {
  rethrow_named(error, question.looks);
}

void Shelf::prepare(const Question& question, const OnProgress& on_progress) try {
  Told unused;
  base_for(question, places_of(question), on_progress, unused);
} catch (const Error& error) {
  rethrow_named(error, question.looks);
}

}  // namespace kinora::server
