// Whether a sanitizer watches the GPU, which makes kernels a hundred times slower: tests then take
// fewer sizes of the same kinds. scripts/test-gpu --sanitize sets the variable.
#pragma once

#include <cstdlib>

namespace kinora::testing {

inline bool sanitized() { return std::getenv("KINORA_SANITIZED") != nullptr; }

}  // namespace kinora::testing
