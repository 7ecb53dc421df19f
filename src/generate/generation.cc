#include "generate/generation.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "model/decoder/hidden_rows.h"
#include "ops/top_k.h"

namespace kinora {

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::stop_token:
      return "stop-token";
    case StopReason::stop_string:
      return "stop-string";
    case StopReason::max_tokens:
      return "max-tokens";
    case StopReason::context_full:
      return "context-full";
  }
  return "?";
}

namespace {

// The most tokens that one pass checks: what a captured graph takes.
constexpr int64_t most_checked = 64;

GenerateOptions checked(const GenerateOptions& options) {
  if (options.max_tokens < 0) {
    throw Error(ErrorKind::usage, "the number of tokens to generate is negative");
  }
  return options;
}

}  // namespace

Generation::Generation(GenerationState state, const GenerateOptions& options,
                       std::shared_ptr<Drafter> drafter)
    : state_(state),
      options_(checked(options)),
      drafter_(drafter ? std::move(drafter) : std::make_unique<NoDrafter>()),
      sampler_(options.sampling),
      filter_(options.stop),
      stream_(state.model.tokenizer()) {
  result_.draft.kind = drafter_->kind();
  if (options.max_tokens == 0) end(StopReason::max_tokens);
}

void Generation::end(StopReason reason) {
  done_ = true;
  fresh_ += filter_.feed(stream_.finish());
  fresh_ += filter_.finish();
  // The rest of the text may be what completes a stop string.
  result_.reason = filter_.stopped() ? StopReason::stop_string : reason;
}

int64_t Generation::room() const {
  if (state_.memory.reads_near()) return std::numeric_limits<int32_t>::max();
  return state_.model.info().max_position - state_.positions.next();
}

bool Generation::is_stop(int32_t token) const {
  const std::vector<int32_t>& stops = state_.model.info().stop_tokens;
  return !options_.ignore_stop_tokens &&
         std::find(stops.begin(), stops.end(), token) != stops.end();
}

bool Generation::emit(int32_t token) {
  if (is_stop(token)) {
    end(StopReason::stop_token);
    return false;
  }
  result_.ids.push_back(token);
  fresh_ += filter_.feed(stream_.push(token));
  if (filter_.stopped()) {
    end(StopReason::stop_string);
    return false;
  }
  if (tokens() == options_.max_tokens) {
    end(StopReason::max_tokens);
    return false;
  }
  if (room() <= 0) {
    end(StopReason::context_full);
    return false;
  }
  newest_ = token;
  return true;
}

int32_t Generation::pick(const Context& context, TensorView row, std::optional<int32_t> largest) {
  std::vector<float> scored;
  if (options_.on_scores) {  // the sampler uses the row as scratch
    scored.resize(static_cast<size_t>(row.elements()));
    copy_bytes(scored.data(), Device::cpu(), row.raw(), row.device(),
               scored.size() * sizeof(float));
  }
  const int32_t token = largest ? *largest : sampler_.pick(context, row, state_.history);
  if (options_.on_scores && !is_stop(token)) {
    options_.on_scores(score_token(scored, token, options_.best_scores));
  }
  return token;
}

void Generation::start(const Context& context, TensorView logits) {
  if (done_) return;
  options_.cancel.check();
  emit(pick(context, logits[0], std::nullopt));
}

Sequence Generation::next(const Context& context, DecoderRunner& runner) {
  options_.cancel.check();
  if (!std::exchange(drafts_, true)) {
    drafter_->start({context, runner, state_.model, state_.memory, state_.positions, state_.mass});
  }
  const int64_t deepest = std::min(room() - 1, options_.max_tokens - tokens() - 1);
  draft_ = Draft();
  if (deepest > 0) {
    // The newest token is not in memory yet: the history has it only while the drafter looks.
    state_.history.push_back(newest_);
    try {
      draft_ = drafter_->propose(state_.history, most_checked - 1, deepest);
    } catch (...) {
      state_.history.pop_back();
      throw;
    }
    state_.history.pop_back();
  }

  Sequence sequence;
  sequence.ids.push_back(newest_);
  sequence.ids.insert(sequence.ids.end(), draft_.ids.begin(), draft_.ids.end());
  // A token stands as far behind the newest one as it is deep in the tree.
  std::vector<size_t> depth{0};
  size_t depths = 1;
  for (const int32_t parent : draft_.parents) {
    depth.push_back(depth[static_cast<size_t>(parent + 1)] + 1);
    depths = std::max(depths, depth.back() + 1);
  }
  std::vector<TokenInfo> along;
  state_.positions.clone()->text(static_cast<int64_t>(depths), along);
  for (const size_t d : depth) sequence.tokens.push_back(along[d]);
  if (!draft_.ids.empty()) {
    sequence.parents.push_back(-1);
    for (const int32_t parent : draft_.parents) sequence.parents.push_back(parent + 1);
  }
  sequence.memory = &state_.memory;
  sequence.attention = &state_.attention;
  sequence.hidden_rows = sequence.count();
  sequence.states = drafter_->states();
  sequence.mass = state_.mass;
  if (sequence.mass == nullptr && deepest > 0 && draft_.ids.empty()) {
    sequence.mass = drafter_->mass();
  }
  sequence.cancel = options_.cancel;
  return sequence;
}

// Walks down the tree: what the model chooses after a token is the next one; where it was drafted,
// the walk goes on there.
void Generation::take(const Context& context, const Forwarded& result, TensorView logits,
                      std::span<const int32_t> largest) {
  ++result_.draft.passes;
  result_.draft.drafted += static_cast<int64_t>(draft_.ids.size());
  std::vector<int32_t> path{0};  // places in the sequence that stay in memory
  std::vector<int32_t> right;    // places in the draft
  std::vector<TokenInfo> passed;
  state_.history.push_back(newest_);
  state_.positions.text(1, passed);
  while (true) {
    const int32_t at = path.back();
    const auto known =
        largest.empty() ? std::nullopt : std::optional(largest[static_cast<size_t>(at)]);
    const int32_t token = pick(context, logits[at], known);
    if (!emit(token)) break;
    int32_t child = -1;
    for (size_t i = 0; i < draft_.ids.size() && child < 0; ++i) {
      if (draft_.parents[i] == at - 1 && draft_.ids[i] == token) child = static_cast<int32_t>(i);
    }
    if (child < 0) break;
    right.push_back(child);
    path.push_back(child + 1);
    state_.history.push_back(token);
    state_.positions.text(1, passed);
  }
  if (path.size() != draft_.ids.size() + 1) state_.memory.accept(context, path);
  if (state_.mass != nullptr && !draft_.ids.empty()) state_.mass->accept(context, path);
  result_.draft.right += static_cast<int64_t>(right.size());
  drafter_->learn({right, result.states, result.usual});
  result_.draft.plain_seconds = drafter_->plain_seconds();
}

std::string Generation::take_text() {
  std::string text = std::exchange(fresh_, {});
  result_.text += text;
  return text;
}

std::vector<std::exception_ptr> step(const Context& context, DecoderRunner& runner,
                                     const Decoder& decoder,
                                     std::span<Generation* const> generations) {
  std::vector<std::exception_ptr> failures(generations.size());
  std::vector<Sequence> batch;
  std::vector<size_t> who;
  for (size_t i = 0; i < generations.size(); ++i) {
    try {
      batch.push_back(generations[i]->next(context, runner));
      who.push_back(i);
    } catch (...) {
      failures[i] = std::current_exception();
    }
  }
  if (batch.empty()) return failures;
  const std::vector<Forwarded> results = runner.forward(std::span<const Sequence>(batch));
  const HiddenRows hidden(context, results, decoder.hidden_size());
  if (hidden.count() == 0) {
    for (size_t i = 0; i < who.size(); ++i) failures[who[i]] = results[i].failure;
    return failures;
  }
  Tensor logits = decoder.logits(context, hidden.view());
  // One look at the device for all who want no more than the largest.
  std::vector<int32_t> largest;
  const auto greedy = [&](size_t i) { return generations[i]->takes_the_largest(); };
  if (std::any_of(who.begin(), who.end(), greedy)) {
    try {
      largest = argmax_rows(context, logits);
    } catch (const Error&) {  // one of them has no largest: each looks for its own
    }
  }
  // And one copy of a small vocabulary for those who draw from it, token by token.
  if (logits.size(1) <= few_logits && !std::all_of(who.begin(), who.end(), greedy)) {
    logits = logits.to(Device::cpu());
  }
  int64_t at = 0;
  for (size_t i = 0; i < who.size(); ++i) {
    if (results[i].failure) {
      failures[who[i]] = results[i].failure;
      continue;
    }
    const int64_t count = results[i].hidden.size(0);
    try {
      std::span<const int32_t> best;
      if (!largest.empty() && generations[who[i]]->takes_the_largest()) {
        best = std::span(largest).subspan(static_cast<size_t>(at), static_cast<size_t>(count));
      }
      generations[who[i]]->take(context, results[i], logits.view().rows(at, count), best);
    } catch (...) {
      failures[who[i]] = std::current_exception();
    }
    at += count;
  }
  return failures;
}

Generated generate(const Context& context, DecoderRunner& runner, Generation& generation,
                   const Decoder& decoder, const Tensor& hidden,
                   const std::function<void(std::string_view)>& on_piece) {
  const auto show = [&] {
    const std::string text = generation.take_text();
    if (!text.empty() && on_piece) on_piece(text);
  };
  if (!generation.done()) {
    Tensor logits = decoder.logits(context, hidden);
    generation.start(context, logits);
  }
  show();
  Generation* const one = &generation;
  while (!generation.done()) {
    const auto failures = step(context, runner, decoder, {&one, 1});
    if (failures[0]) std::rethrow_exception(failures[0]);
    show();
  }
  return generation.result();
}

}  // namespace kinora
