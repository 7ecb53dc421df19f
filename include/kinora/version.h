// The version of the library that a program runs with.
#pragma once

namespace kinora {

const char* version();  // "0.1.0"

}  // namespace kinora
