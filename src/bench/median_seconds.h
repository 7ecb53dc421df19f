// How long work on a device takes. Used by the benchmarks of this folder.
#pragma once

#include <functional>

#include "base/context.h"

namespace kinora::cli {

// The median of several runs; the first, a warm-up, is not counted.
double median_seconds(const Context& context, int repeats, const std::function<void()>& work);

}  // namespace kinora::cli
