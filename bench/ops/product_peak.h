// What instructions that multiply bf16, or bytes, do at most on this machine: products on registers
// only, on every thread.
#pragma once

#include <string_view>

#include "base/context.h"
#include "ops/matmul_cpu.h"

namespace kinora::bench {

// Runs for about `seconds` and returns operations a second (a multiply-add counts as two).
double measure_bf16_peak(const Context& context, const cpu::Bf16Product& product, double seconds);

// The best instructions for whole numbers of 8 bits that this CPU has and kinora uses; empty: none.
std::string_view byte_instructions();
double measure_byte_peak(const Context& context, double seconds);

}  // namespace kinora::bench
