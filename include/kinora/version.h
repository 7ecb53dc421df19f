// The version of the library that a program runs with.
#pragma once

#include <kinora/api.h>

namespace kinora {

KINORA_API const char* version();  // "0.1.0"

}  // namespace kinora
