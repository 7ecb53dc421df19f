// Policies: the named choices at the points of the pipeline where a method can be swapped
// (attention, retention, memory, draft). The folder that owns a point lists its policies; parsing,
// help and documentation all come from that list. A policy is NAME or NAME:key=value,key=value.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/policy/names.h"
#include "base/policy/settings.h"

namespace kinora {

// A policy as help and documentation show it.
struct PolicyInfo {
  std::string name;
  std::string summary;  // one line
  std::vector<SettingInfo> settings{};
};

// A point of the road and what can be chosen there.
struct PolicyPoint {
  std::string name;     // "attention"
  std::string summary;  // what is chosen, one line
  std::string form;     // how a choice is written
  std::string initial;  // the choice where none is named
  std::vector<PolicyInfo> policies{};
  std::vector<SettingInfo> modifiers{};  // may follow any of them as +key or +key=value
  // Throws an error that says what is wrong with a choice, if something is.
  std::function<void(std::string_view text)> check{};

  std::vector<std::string> names() const;
};

// "momo:k=64,rank=mass" taken apart. Throws a usage error: settings that are none.
struct PolicyText {
  std::string name;
  std::vector<GivenSetting> settings;
};
PolicyText split_policy(std::string_view text);

// The place of a policy's name in a list. Throws a usage error with all names and the nearest.
size_t find_name(std::string_view name, const std::vector<std::string>& names);

// The policy of that name; each has a PolicyInfo called info.
template <typename Policy>
const Policy& find_policy(std::string_view name, const std::vector<Policy>& policies) {
  std::vector<std::string> names;
  for (const Policy& policy : policies) names.push_back(policy.info.name);
  return policies[find_name(name, names)];
}

template <typename Policy>
std::vector<PolicyInfo> infos_of(const std::vector<Policy>& policies) {
  std::vector<PolicyInfo> infos;
  for (const Policy& policy : policies) infos.push_back(policy.info);
  return infos;
}

// Does `work` and puts "attention 'momo:k=0': " in front of what is thrown.
template <typename Work>
auto in_words(std::string_view point, std::string_view text, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw Error(error.kind(), std::string(point) + " " + in_quotes(text) + ": " + error.what(),
                error.hint());
  }
}

}  // namespace kinora
