#include "memory/retention/policies.h"

namespace kinora {

// Each is described in a file of its own.
RetentionPolicy attention_mass_policy();
RetentionPolicy attention_score_policy();
RetentionPolicy keep_all_policy();
RetentionPolicy key_norm_policy();
RetentionPolicy random_policy();
RetentionPolicy value_norm_policy();

const std::vector<RetentionPolicy>& retention_policies() {
  static const std::vector<RetentionPolicy> policies = {
      keep_all_policy(),        key_norm_policy(),       value_norm_policy(),
      attention_score_policy(), attention_mass_policy(), random_policy(),
  };
  return policies;
}

RetentionPolicy ratio_policy(std::shared_ptr<const RetentionRule> rule, std::string summary) {
  Settings<Retention> settings(Retention{std::move(rule), 1});
  settings.share("ratio", &Retention::ratio, "share of the visual rows of a group that stays")
      .needed()
      .bare();
  RetentionPolicy policy;
  policy.info = {std::string(settings.initial().rule->name()), std::move(summary), settings.info()};
  policy.make = [settings](std::span<const GivenSetting> given) { return settings.read(given); };
  return policy;
}

}  // namespace kinora
