// How the tokens of an answer are proposed, as people choose it. A new drafter is a header, a
// file that describes it, a test and a line of policies.cc.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/policy/policy.h"
#include "generate/drafter.h"

namespace kinora {

struct DraftPolicy {
  PolicyInfo info;
  std::function<std::unique_ptr<Drafter>(std::span<const GivenSetting> given)> make;
};

const std::vector<DraftPolicy>& draft_policies();
const PolicyPoint& draft_point();

// By name, with settings after a colon. Throws a usage error that lists the choices.
std::unique_ptr<Drafter> make_drafter(std::string_view text);

}  // namespace kinora
