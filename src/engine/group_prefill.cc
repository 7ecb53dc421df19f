#include "engine/group_prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "attention/observer.h"
#include "attention/planner.h"
#include "base/error.h"
#include "engine/scheduler/scheduler.h"
#include "model/decoder/input_rows.h"

namespace kinora {

GroupPrefill::GroupPrefill(const EngineState& engine, Memory& memory, Attention& attention,
                           GroupPrefillOptions options, Progress& progress, SpanRecorder& spans)
    : engine_(engine),
      memory_(memory),
      attention_(attention),
      options_(std::move(options)),
      progress_(progress),
      clock_(engine.context, spans, "prefill"),
      text_tokens_(options_.text_tokens) {}

void GroupPrefill::add(Tensor rows, std::vector<TokenInfo> tokens, std::span<const int32_t> ids) {
  if (rows.size(0) != static_cast<int64_t>(tokens.size())) {
    throw Error(ErrorKind::internal, "tokens and embeddings of a group differ in number");
  }
  if (tokens.empty()) return;
  pieces_.push_back(std::move(rows));
  waiting_.insert(waiting_.end(), tokens.begin(), tokens.end());
  waiting_ids_.insert(waiting_ids_.end(), ids.begin(), ids.end());
  if (static_cast<int64_t>(waiting_.size()) >= options_.max_tokens) run();
}

void GroupPrefill::end_frames() {
  if (memory_.prunes_frames()) run_waiting();
}

void GroupPrefill::run_waiting() {
  if (!waiting_.empty()) run();
}

Tensor GroupPrefill::finish() {
  run_waiting();
  clock_.finish();
  if (!hidden_.defined()) throw Error(ErrorKind::internal, "there was nothing to prefill");
  return hidden_;
}

// The question goes along at the end of a group, so that its queries have seen what they judge.
void GroupPrefill::add_question(Sequence& group) const {
  group.probes = static_cast<int64_t>(options_.question.size());
  options_.positions->clone()->text(group.probes, group.tokens);
}

void GroupPrefill::check_memory() const {
  int64_t visual = 0;
  for (const TokenInfo& token : waiting_) visual += token.modality != Modality::text;
  const auto text = static_cast<int64_t>(waiting_.size()) - visual;
  const int64_t rows = text + memory_.kept_of(visual);
  const int64_t bytes = memory_.bytes().held() + rows * memory_.layout().bytes_per_token();
  const int64_t allowed =
      std::min(options_.max_row_bytes, options_.share != nullptr ? options_.share->most() : bytes);
  if (bytes <= allowed && (options_.share == nullptr || options_.share->resize(bytes))) return;
  throw Error(
      ErrorKind::resource,
      fmt::format("the memory budget is used up after {} of {} tokens: keys and values would "
                  "need {} bytes, {} are allowed; raise the budget, clear the conversation or end "
                  "others",
                  tokens_, options_.expected_tokens, bytes, allowed));
}

// The drafter gets the states of the group's text.
void GroupPrefill::show_text(const Sequence& group, std::span<const Tensor> states) {
  const std::vector<int32_t> ids = std::exchange(waiting_ids_, {});
  if (!states.empty()) {
    std::vector<TokenInfo> tokens;
    for (const int32_t row : group.state_rows) {
      tokens.push_back(group.tokens[static_cast<size_t>(row)]);
    }
    options_.drafter->read({text_tokens_, ids, tokens, states});
  }
  text_tokens_ += std::ssize(ids);
}

void GroupPrefill::run() {
  options_.cancel.check();
  check_memory();
  clock_.begin();
  Sequence group;
  group.tokens = std::exchange(waiting_, {});
  group.memory = &memory_;
  group.attention = &attention_;
  group.observer = options_.observer;
  group.cancel = options_.cancel;
  const int64_t count = group.count();
  if (tokens_ + count == options_.expected_tokens) {
    group.mass = options_.mass;
    group.mass_rows = 1;
  }
  const bool visual =
      std::any_of(group.tokens.begin(), group.tokens.end(),
                  [](const TokenInfo& token) { return token.modality != Modality::text; });
  std::vector<Tensor> pieces = std::exchange(pieces_, {});
  const Decoder& decoder = engine_.model->decoder();
  if (visual && memory_.needs_question()) {
    add_question(group);
    pieces.push_back(decoder.embed(engine_.context, options_.question));
    group.mass = nullptr;  // the last row is a probe
  }
  set_input_rows(engine_.context, pieces, decoder.hidden_size(), group);
  pieces.clear();
  const int64_t first = memory_.token_count();
  const int64_t total = first - tokens_ + options_.expected_tokens;
  if (group.observer != nullptr) group.observer->begin_group({first, count, total});
  if (Planner* planner = attention_.planner(); planner != nullptr) planner->set_length(total);
  if (options_.drafter != nullptr && !waiting_ids_.empty()) {
    group.states = options_.drafter->states();
    for (int64_t i = 0; i < count && !group.states.empty(); ++i) {
      if (group.tokens[static_cast<size_t>(i)].modality != Modality::text) continue;
      group.state_rows.push_back(static_cast<int32_t>(i));
    }
  }
  const Forwarded result = engine_.scheduler->prefill(group);
  hidden_ = result.hidden;
  show_text(group, result.states);
  clock_.end(fmt::format("prefill tokens {} to {}", tokens_, tokens_ + count));
  tokens_ += count;
  progress_.update("prefill", tokens_, options_.expected_tokens);
}

}  // namespace kinora
