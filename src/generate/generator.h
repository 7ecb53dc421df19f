// Plain generation: one token at a time from the model's own logits, streamed as text. Draft
// policies will stand beside it and give the same tokens faster.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "generate/sampler.h"
#include "model/model.h"

namespace kinora {

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_tokens = 512;
  std::vector<std::string> stop;    // the answer ends before the first of these
  bool ignore_stop_tokens = false;  // go on past the model's end-of-turn token (tests, benches)
  CancelToken cancel;
  std::function<void(int32_t)> on_token;  // called with every token as soon as it is chosen
};

enum class StopReason { stop_token, stop_string, max_tokens, context_full };
std::string_view stop_reason_name(StopReason reason);

struct Generated {
  std::string text;
  std::vector<int32_t> ids;  // without the stop token
  StopReason reason = StopReason::max_tokens;
};

// What generation continues from. Every token it makes is added to the store and to the history,
// so that a next turn can follow.
struct GenerationState {
  const Model& model;
  RowStore& store;
  Attention& attention;
  PositionCounter& positions;
  std::vector<int32_t>& history;  // text tokens so far: what the repetition penalty sees
};

// `hidden` is the last row after the final norm, [1, hidden]. `on_piece` receives text as soon as
// it is certain; it never ends inside a character or shows part of a stop string.
Generated generate(const Context& context, GenerationState state, const Tensor& hidden,
                   const GenerateOptions& options,
                   const std::function<void(std::string_view)>& on_piece);

}  // namespace kinora
