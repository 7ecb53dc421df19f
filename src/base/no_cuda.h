// What a function that needs a GPU does in a build without a CUDA compiler. The no_cuda.cc of every
// folder consists of it: these functions must exist to link, and are called only if someone names a
// GPU, which such a build cannot have.
#pragma once

#include "base/error.h"

namespace kinora {

[[noreturn]] inline void no_cuda() {
  throw Error(ErrorKind::unsupported,
              "this kinora was built without CUDA: use the device cpu, or build it where nvcc is "
              "installed",
              ErrorHint::use_cpu);
}

}  // namespace kinora
