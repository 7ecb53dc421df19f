// What instructions that multiply bf16 do at most on this machine: products on registers only, on
// every thread.
#pragma once

#include "base/context.h"
#include "ops/matmul_cpu.h"

namespace kinora::bench {

// Runs for about `seconds` and returns operations a second (a multiply-add counts as two).
double measure_bf16_peak(const Context& context, const cpu::Bf16Product& product, double seconds);

}  // namespace kinora::bench
