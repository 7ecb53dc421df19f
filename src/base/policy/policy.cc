#include "base/policy/policy.h"

#include <algorithm>

namespace kinora {

std::vector<std::string> PolicyPoint::names() const {
  std::vector<std::string> names;
  for (const PolicyInfo& policy : policies) names.push_back(policy.name);
  return names;
}

PolicyText split_policy(std::string_view text) {
  const size_t colon = text.find(':');
  PolicyText parts{std::string(text.substr(0, colon)), {}};
  if (colon != std::string_view::npos) parts.settings = split_settings(text.substr(colon + 1), ',');
  return parts;
}

size_t find_name(std::string_view name, const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  throw Error(ErrorKind::usage, "no policy has this name; " + suggest_name(name, names));
}

}  // namespace kinora
