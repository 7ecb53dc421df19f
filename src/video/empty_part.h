// What is said of a part of a video in which no frame begins. Used by engine/ and `kinora frames`.
#pragma once

#include <span>
#include <string>

namespace kinora {

// Throws a bad-input error that names the source and when its frames begin, at `times`.
[[noreturn]] void refuse_empty_part(const std::string& source, std::span<const double> times);

}  // namespace kinora
