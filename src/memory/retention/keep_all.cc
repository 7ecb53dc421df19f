#include "memory/retention/policies.h"

namespace kinora {

RetentionPolicy keep_all_policy() {
  // A ratio of 1 may be written, for scripts that vary it; it is no setting to speak of.
  Settings<Retention> settings;
  settings
      .choice("ratio", &Retention::ratio, std::vector<std::pair<std::string, double>>{{"1", 1.0}},
              "share of the visual rows of a group that stays")
      .bare();
  RetentionPolicy policy;
  policy.info = {"all", "nothing is given up"};
  policy.make = [settings](std::span<const GivenSetting> given) { return settings.read(given); };
  return policy;
}

}  // namespace kinora
