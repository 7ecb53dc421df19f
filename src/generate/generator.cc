#include "generate/generator.h"

#include <algorithm>

#include "base/error.h"
#include "generate/stop_filter.h"
#include "text/text_stream.h"

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

// Runs one token through the decoder; returns its hidden row.
Tensor feed(const Context& context, GenerationState& state, int32_t token,
            const CancelToken& cancel) {
  TokenGroup group;
  group.embeddings = state.model.decoder().embed(context, {&token, 1});
  state.positions.text(1, group.tokens);
  PrefillOptions options;
  options.cancel = cancel;
  Tensor hidden =
      state.model.decoder().prefill(context, group, state.store, state.attention, options);
  state.history.push_back(token);
  return hidden;
}

}  // namespace

Generated generate(const Context& context, GenerationState state, const Tensor& hidden,
                   const GenerateOptions& options,
                   const std::function<void(std::string_view)>& on_piece) {
  if (options.max_tokens < 0) {
    throw Error(ErrorKind::usage, "the number of tokens to generate is negative");
  }
  const ModelInfo& info = state.model.info();
  const std::vector<int32_t>& stops = info.stop_tokens;
  Sampler sampler(options.sampling);
  StopFilter filter(options.stop);
  TextStream stream(state.model.tokenizer());
  Generated result;
  const auto show = [&](const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    on_piece(text);
  };

  Tensor last = hidden;
  while (static_cast<int64_t>(result.ids.size()) < options.max_tokens) {
    options.cancel.check();
    Tensor logits = state.model.decoder().logits(context, last);
    const int32_t token = sampler.pick(context, logits, state.history);
    if (!options.ignore_stop_tokens &&
        std::find(stops.begin(), stops.end(), token) != stops.end()) {
      result.reason = StopReason::stop_token;
      break;
    }
    result.ids.push_back(token);
    if (options.on_token) options.on_token(token);
    show(filter.feed(stream.push(token)));
    if (filter.stopped()) {
      result.reason = StopReason::stop_string;
      break;
    }
    if (static_cast<int64_t>(result.ids.size()) == options.max_tokens) break;
    if (state.positions.next() >= info.max_position) {
      result.reason = StopReason::context_full;
      break;
    }
    last = feed(context, state, token, options.cancel);
  }
  show(filter.feed(stream.finish()));
  show(filter.finish());
  return result;
}

}  // namespace kinora
