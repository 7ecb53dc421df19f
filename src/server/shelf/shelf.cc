#include "server/shelf/shelf_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/files/content_key.h"
#include "server/api_error.h"

namespace kinora::server {
namespace {

constexpr size_t most_talks = 1024;

}  // namespace

Shelf::Shelf(const Engine& engine, const SessionOptions& options, int64_t max_bytes,
             double patience)
    : engine_(engine), options_(options), max_bytes_(max_bytes), patience_(patience) {
  options_.progress = nullptr;
  // Refuses at once what could not be shared.
  SessionState session(EngineAccess::state(engine_), options_);
  session.fork();
  token_bytes_ = session.layout().bytes_per_token();
}

Shelf::~Shelf() {
  talks_.clear();  // before the bases that count their rows
}

std::unique_ptr<Shelf::Talk> Shelf::take_talk(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = talks_.find(key);
  if (found == talks_.end()) return nullptr;
  std::unique_ptr<Talk> talk = std::move(found->second);
  talks_.erase(found);
  return talk;
}

MemoryBytes Shelf::own_bytes(const Talk& talk) {
  MemoryBytes own = talk.session->bytes();
  const MemoryBytes shared = talk.base != nullptr ? talk.base->tiers : MemoryBytes();
  own.device = std::max<int64_t>(0, own.device - shared.device);
  own.host = std::max<int64_t>(0, own.host - shared.host);
  own.disk = std::max<int64_t>(0, own.disk - shared.disk);
  return own;
}

void Shelf::keep_talk(std::unique_ptr<Talk> talk, const Question& question, const Answer& answer) {
  Question said = question;
  said.turns.push_back({"assistant", {{Modality::text, answer.text}}});
  const std::string key = places_of(said).back().key;
  const std::lock_guard lock(mutex_);
  used_ -= talk->bytes;
  talk->tiers = own_bytes(*talk);
  talk->bytes = talk->tiers.total();
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

void describe_inputs(const SessionState& session, Told& told) {
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
}

FetchCounts fetched_since(const FetchCounts& before, const SessionState& session) {
  const FetchCounts now = session.fetched();
  return {now.wanted - before.wanted, now.late - before.late};
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
    add_look(session, question.looks[talk->looks], cancel);
    talk->media.push_back(question.looks[talk->looks].media);
  }
  session.adopt(history);
  const Forecast forecast = session.forecast(asked.parts);
  const int64_t wanted = question.generate.max_tokens * token_bytes_;
  const int64_t more = std::max<int64_t>(0, forecast.row_bytes - session.bytes().total());
  const FetchCounts fetched = session.fetched();
  {
    const Reservation reservation(*this, more + wanted, cancel);
    told.answer = session.ask(asked.parts, question.generate, on_piece, {question.evidence});
  }
  describe_inputs(session, told);
  told.fetched = fetched_since(fetched, session);
  watching.reset();
  keep_talk(std::move(talk), question, told.answer);
  return told;
} catch (const Error& error) {
  rethrow_named(error, question.looks);
}

}  // namespace kinora::server
