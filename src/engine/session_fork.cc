// Many conversations about one video: a session goes on in several ways at once, and a conversation
// that was kept elsewhere is taken up again.
#include <utility>

#include "base/error.h"
#include "engine/attention_choice.h"
#include "engine/session_state.h"
#include "engine/session_stream.h"

namespace kinora {

std::unique_ptr<SessionState> SessionState::fork(decltype(SessionOptions::progress) progress) {
  if (source_ && !source_->ended) {
    throw Error(ErrorKind::unsupported,
                inputs_[0].source + " is still being taken in: it cannot be shared yet");
  }
  SessionOptions options = options_;
  options.progress = std::move(progress);
  auto other = std::make_unique<SessionState>(engine_, options);
  other->memory_ = memory_->fork(memory_->mark());
  if (auto drafter = drafter_->fork()) other->drafter_ = std::move(drafter);
  other->positions_ = positions_->clone();
  other->asked_ = asked_;
  other->transcript_ = transcript_;
  other->inputs_ = inputs_;
  other->visual_rows_ = visual_rows_;
  other->changes_ = changes_;
  other->places_.clear();
  for (const Place& place : places_) {
    other->places_.push_back({place.mark, place.positions->clone(), place.said});
  }
  if (!inputs_.empty()) {
    other->attention_ = choose_attention(*engine_, options_, frame_tokens());
  }
  if (source_) {
    other->source_ = std::make_unique<OpenSource>();
    other->source_->as_it_came = source_->as_it_came;
    other->source_->place = source_->place;
    other->source_->ended = true;
    other->source_->closed = source_->closed;
  }
  other->share_.set_counted_elsewhere(other->memory_->bytes().total());
  return other;
}

void SessionState::adopt(const std::vector<Turn>& turns) {
  Asked asked;
  for (const Turn& turn : turns) {
    asked.conversation.turns.push_back({turn.role, {}});
    std::vector<ContentPart>& content = asked.conversation.turns.back().parts;
    for (const ContentPart& part : turn.parts) {
      if (part.modality == Modality::text) {
        content.push_back(part);
        continue;
      }
      if (asked.inputs >= inputs_.size()) {
        throw Error(ErrorKind::usage, "the conversation speaks of more inputs than were given");
      }
      const VisualInput& input = inputs_[asked.inputs];
      const auto laid_out = lay_out(input, input.subtitles, asked.inputs, asked.segments);
      content.insert(content.end(), laid_out.begin(), laid_out.end());
      ++asked.inputs;
    }
  }
  asked_ = std::move(asked);
}

}  // namespace kinora
