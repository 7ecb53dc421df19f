#include "engine/tokens/policies.h"

namespace kinora {

TokenPolicy all_tokens_policy() {
  // A ratio of 1 may be written, for scripts that vary it; it is no setting to speak of.
  Settings<TokenChoice> settings;
  settings
      .choice("ratio", &TokenChoice::ratio, std::vector<std::pair<std::string, double>>{{"1", 1.0}},
              "share of the tokens of a group that goes on")
      .bare();
  TokenPolicy policy;
  policy.info = {"all", "nothing is left out"};
  policy.make = [settings](std::span<const GivenSetting> given) { return settings.read(given); };
  return policy;
}

}  // namespace kinora
