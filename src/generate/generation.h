// An answer in the making. Each step hands the decoder the newest token and the drafter's guesses,
// and keeps as many of them as the model itself would have chosen. With any drafter, the answer is
// the same as when generating one token at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "generate/drafter.h"
#include "generate/sampler.h"
#include "generate/stop_filter.h"
#include "generate/token_scores.h"
#include "model/model.h"
#include "text/text_stream.h"

namespace kinora {

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_tokens = 512;
  std::vector<std::string> stop;    // the answer ends before the first of these
  bool ignore_stop_tokens = false;  // go on past the model's end-of-turn token (tests, benches)
  CancelToken cancel;
  // Called for every token of the answer, on whichever thread makes it, with the `best_scores` most
  // likely tokens at its place.
  std::function<void(const TokenScores&)> on_scores = nullptr;
  int64_t best_scores = 0;
};

enum class StopReason { stop_token, stop_string, max_tokens, context_full };
std::string_view stop_reason_name(StopReason reason);

// How drafting went.
struct DraftReport {
  int64_t passes = 0;        // of the model
  int64_t drafted = 0;       // tokens guessed
  int64_t right = 0;         // of these, kept
  double plain_seconds = 0;  // of a pass over one token, where the drafter measured it; else 0
  std::string kind;          // of the draft, where it has weights; else empty
};

struct Generated {
  std::string text;
  std::vector<int32_t> ids;  // without the stop token
  StopReason reason = StopReason::max_tokens;
  DraftReport draft;
};

// What generation continues from. Every token it makes is added to the memory and to the history,
// so that a next turn can follow.
struct GenerationState {
  const Model& model;
  Memory& memory;
  Attention& attention;
  PositionCounter& positions;
  std::vector<int32_t>& history;  // text tokens so far: what the repetition penalty sees
  RowMass* mass = nullptr;        // where the answer's attention is added up; null: nowhere
};

class Generation {
 public:
  // `drafter` may be null: no drafts. One that lives longer than the answer is used by one answer
  // at a time.
  Generation(GenerationState state, const GenerateOptions& options,
             std::shared_ptr<Drafter> drafter = nullptr);

  // The first token, from the logits [1, vocabulary] of the prompt's last row.
  void start(const Context& context, TensorView logits);

  bool done() const { return done_; }
  // What the decoder must run next; all hidden rows are needed. Must not be called once done. A
  // drafter may use the runner until it returns.
  Sequence next(const Context& context, DecoderRunner& runner);
  // Its result, the logits [rows, vocabulary] of its hidden rows and, where takes_the_largest, the
  // place of the largest logit of each.
  void take(const Context& context, const Forwarded& result, TensorView logits,
            std::span<const int32_t> largest = {});
  bool takes_the_largest() const { return sampler_.takes_the_largest(); }

  // Text that became certain since the last call; it never ends inside a character or shows part of
  // a stop string. After the end it brings what was held back.
  std::string take_text();
  int64_t tokens() const { return static_cast<int64_t>(result_.ids.size()); }
  // Once done.
  const Generated& result() const { return result_; }

 private:
  // Shows the token and says whether the answer goes on.
  int64_t room() const;  // positions that are left
  bool emit(int32_t token);
  bool is_stop(int32_t token) const;
  // Picks from a row of logits; `largest` where it is known to be the choice.
  int32_t pick(const Context& context, TensorView row, std::optional<int32_t> largest);
  void end(StopReason reason);

  GenerationState state_;
  GenerateOptions options_;
  std::shared_ptr<Drafter> drafter_;
  Sampler sampler_;
  StopFilter filter_;
  TextStream stream_;
  Generated result_;
  std::string fresh_;  // certain and not yet taken
  bool done_ = false;
  bool drafts_ = false;  // the drafter knows what it drafts for
  int32_t newest_ = 0;   // emitted, not yet in memory
  Draft draft_;          // under way
};

// One step of each of these generations: one pass of the decoder over all of them, and one product
// for all their logits. A generation whose part failed gets the failure instead; its memory is as
// before the step.
std::vector<std::exception_ptr> step(const Context& context, DecoderRunner& runner,
                                     const Decoder& decoder,
                                     std::span<Generation* const> generations);

// Runs one generation to its end, for callers without a scheduler. `hidden` is the last row of the
// prompt after the final norm, [1, hidden].
Generated generate(const Context& context, DecoderRunner& runner, Generation& generation,
                   const Decoder& decoder, const Tensor& hidden,
                   const std::function<void(std::string_view)>& on_piece);

}  // namespace kinora
