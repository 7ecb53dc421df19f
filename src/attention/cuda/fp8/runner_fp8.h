// Launches the FP8 kernel (fp8_kernel.cuh), kept in a file of its own: its registers are watched by
// the build. Private to attention/.
#pragma once

#include "attention/cuda/fp8/fp8_rows.h"
#include "base/context.h"

namespace kinora::cuda_attention {
struct Problem;
}

namespace kinora::fp8_attention {

// Whether the device has what the kernel needs and this program was compiled for it.
bool runs_on(int device);

// One pass of a plan cut for 128 rows and 128 keys, whose lists are contiguous keys and pieces of
// 32. With `anywhere` contiguous keys need not begin at a multiple of 32; such lists are whole.
void launch(const Context& context, const cuda_attention::Problem& problem, const Fp8Rows& rows,
            bool anywhere);

}  // namespace kinora::fp8_attention
