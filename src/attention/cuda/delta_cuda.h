// Delta correction on a GPU (delta.h). Private to attention/.
#pragma once

#include <cstdint>
#include <span>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora::cuda_attention {

// Both f32 or both bf16, the last axis contiguous.
void apply_delta(const Context& context, ConstTensorView dense, std::span<const int32_t> places,
                 TensorView out);

}  // namespace kinora::cuda_attention
