// All retention policies. A new rule is a file that describes it, a test and a line of policies.cc.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/policy/policy.h"
#include "memory/retention/retention.h"

namespace kinora {

struct RetentionPolicy {
  PolicyInfo info;
  std::function<Retention(std::span<const GivenSetting>)> make;
};

const std::vector<RetentionPolicy>& retention_policies();

// The best share of the visual rows of a group stays, by a rule.
RetentionPolicy ratio_policy(std::shared_ptr<const RetentionRule> rule, std::string summary);

}  // namespace kinora
