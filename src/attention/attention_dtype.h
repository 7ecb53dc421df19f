// What attention multiplies in on a GPU while it prefills: bf16, or FP8 where the kernel for it can
// (attention/cuda/fp8/; docs/methods/attention.md). CPUs compute in f32 whatever is asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/device.h"

namespace kinora {

enum class AttentionDtype : uint8_t { bf16, fp8 };

// "bf16", "fp8"
const std::vector<std::string>& attention_dtype_names();
// Throws a usage error that lists them.
AttentionDtype attention_dtype_of(const std::string& name);

// Whether FP8 runs there: on Hopper GPUs, in builds for them.
bool has_fp8_attention(Device device);

// Launches of attention since FP8 was asked for. What its kernel cannot read, or is too little to
// pay for rounding, runs in bf16.
struct AttentionLaunches {
  int64_t fp8 = 0;
  int64_t bf16 = 0;
};

}  // namespace kinora
