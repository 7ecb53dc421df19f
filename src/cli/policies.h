// The points where people choose a policy, in words: for help, for the texts of flags, and for
// docs/policies.md, which `kinora help policies --markdown` prints.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/policy/policy.h"

namespace kinora::cli {

// All of them, in pipeline order.
std::vector<const PolicyPoint*> policy_points();

// "dense, momo, grid", for the text of a flag.
std::string policy_names(const PolicyPoint& point);

// Throws an error that names the flag and says what is wrong with its choice.
void check_policy(std::string_view flag, const PolicyPoint& point, const std::string& text);

// The names of a point with what they mean, one per line.
std::string policy_list(const PolicyPoint& point);
// Every point with its policies and their settings.
std::string policies_text();
std::string policies_markdown();

}  // namespace kinora::cli
