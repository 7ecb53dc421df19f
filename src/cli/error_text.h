// The text of an error as a person reads it. The library says in plain words what is wrong and what
// to do; this adds the flags that do it. Used by every command that prints an error.
#pragma once

#include <string>

#include "base/error.h"

namespace kinora::cli {

std::string error_text(const Error& error);

}  // namespace kinora::cli
