// All attention policies, in the order in which people see them.
#pragma once

#include <vector>

#include "attention/policies/policy.h"

namespace kinora {

const std::vector<AttentionPolicy>& attention_policies();

}  // namespace kinora
