#include "engine/tokens/policies.h"

namespace kinora {

// Each is described in a file of its own.
TokenPolicy all_tokens_policy();
TokenPolicy evs_policy();
TokenPolicy novel_policy();
TokenPolicy random_tokens_policy();
TokenPolicy whole_frames_policy();

const std::vector<TokenPolicy>& token_policies() {
  static const std::vector<TokenPolicy> policies = {
      all_tokens_policy(),    evs_policy(),          novel_policy(),
      random_tokens_policy(), whole_frames_policy(),
  };
  return policies;
}

TokenPolicy token_share_policy(std::shared_ptr<const TokenRule> rule, std::string summary) {
  Settings<TokenChoice> settings(TokenChoice{std::move(rule), 1});
  settings.share("ratio", &TokenChoice::ratio, "share of the tokens of a group that goes on")
      .needed()
      .bare();
  TokenPolicy policy;
  policy.info = {std::string(settings.initial().rule->name()), std::move(summary), settings.info()};
  policy.make = [settings](std::span<const GivenSetting> given) { return settings.read(given); };
  return policy;
}

}  // namespace kinora
