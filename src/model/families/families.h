// The families that kinora knows.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/families/family.h"

namespace kinora {

std::span<const Family* const> families();

const Family* find_family(std::string_view model_type);  // null when there is none

// Throws unsupported with the list of those there are.
const Family& family_of(const ConfigFiles& config);

// The names of those that see: "a or b".
std::string seeing_families();

}  // namespace kinora
