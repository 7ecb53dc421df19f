// How likely the tokens of an answer were, for callers who ask for it (logprobs of OpenAI's API).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kinora {

// By the model's own logits, before temperature, penalties and cuts.
struct TokenScore {
  int32_t token = 0;
  double log_probability = 0;
};
struct TokenScores {
  TokenScore chosen;
  std::vector<TokenScore> best;  // the most likely ones, in order
};

// log softmax of a row of logits [vocabulary] at `token` and at its `best` largest places; equal
// ones by id.
TokenScores score_token(std::span<const float> logits, int32_t token, int64_t best);

}  // namespace kinora
