// Which visual tokens reach the decoder. Right after the vision tower has encoded a group of
// frames, every token of it gets a score, and the best share of the group goes on; the others are
// never prefilled. Those that stay keep the positions that they have among all. How many stay is
// known before a frame is decoded: it does not depend on what the frames show. Pictures are left
// whole. The rules that score are listed in policies.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/policy/policy.h"
#include "engine/tokens/rule.h"
#include "model/visual_plan.h"

namespace kinora {

struct TokenChoice {
  std::shared_ptr<const TokenRule> rule;  // null: every token goes on
  double ratio = 1;                       // of the tokens of a group, in (0, 1]

  bool prunes() const { return rule != nullptr; }
};

// What there is, for help and documentation.
const PolicyPoint& tokens_point();

// Reads "all", "NAME:RATIO" ("evs:0.25") or "NAME:ratio=RATIO". Throws a usage error that lists the
// choices.
TokenChoice parse_tokens(std::string_view text);
std::string to_string(const TokenChoice& choice);  // "evs:0.25"

// Of a group of `units` units of a video: the ratio of its tokens, rounded and at least one; and of
// the first group at least one unit, because nothing comes before it.
int64_t kept_of_group(const TokenChoice& choice, int64_t tokens_per_unit, int64_t units,
                      bool first);

// Of a whole input that comes in groups of this many frames, trailing tokens included.
int64_t kept_of_input(const TokenChoice& choice, const VisualPlan& plan, int64_t frames_per_group);

// Chooses the tokens of one input as its groups come.
class TokenPruner {
 public:
  // hidden: the width of an embedding; what stands behind it in a row goes along.
  TokenPruner(const TokenChoice& choice, const VisualPlan& plan, int64_t hidden);

  // Places of the tokens that stay, increasing, among those of the next `units` units and what
  // trails them. Of tokens with equal scores the earlier ones stay; a score that is no number is
  // the lowest.
  std::vector<int32_t> choose(const Context& context, ConstTensorView tokens, int64_t units);

 private:
  const TokenChoice choice_;
  const int64_t tokens_per_unit_;
  const int64_t hidden_;
  std::unique_ptr<TokenJudge> judge_;  // null: all stay
  bool first_ = true;
};

}  // namespace kinora
