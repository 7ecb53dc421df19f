// All policies of which tokens reach the decoder. A new rule is a file that describes it, a test
// and a line of policies.cc.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/policy/policy.h"
#include "engine/tokens/tokens.h"

namespace kinora {

struct TokenPolicy {
  PolicyInfo info;
  std::function<TokenChoice(std::span<const GivenSetting>)> make;
};

const std::vector<TokenPolicy>& token_policies();

// The best share of the tokens of a group goes on, by a rule.
TokenPolicy token_share_policy(std::shared_ptr<const TokenRule> rule, std::string summary);

}  // namespace kinora
