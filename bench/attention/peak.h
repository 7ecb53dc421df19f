// The f32 ceiling of this machine: multiply-adds on registers only, on every thread.
#pragma once

#include "base/context.h"

namespace kinora::bench {

// Runs for about `seconds` and returns operations a second (a multiply-add counts as two).
double measure_peak_flops(const Context& context, double seconds);

}  // namespace kinora::bench
