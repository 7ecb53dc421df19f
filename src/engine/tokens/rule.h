// How the visual tokens of a video are compared when only part of them reaches the decoder. Each
// rule is in a file of its own (evs.cc, …) and in the list of policies.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// Judges the tokens of one video as they come, group after group.
class TokenJudge {
 public:
  virtual ~TokenJudge() = default;

  // One score per token, higher is better; the best `kept` will go on. tokens: f32 [units × tokens
  // of a unit, hidden] of the next units, on the context's device.
  virtual std::vector<float> scores(const Context& context, ConstTensorView tokens, int64_t units,
                                    int64_t kept) = 0;
};

class TokenRule {
 public:
  virtual ~TokenRule() = default;
  virtual std::string_view name() const = 0;
  // Of a video of which nothing has come yet.
  virtual std::unique_ptr<TokenJudge> begin(int64_t tokens_per_unit) const = 0;
};

}  // namespace kinora
