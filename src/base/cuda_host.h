// The host side of CUDA for files that launch no kernels of their own: errors as kinora::Error and
// the stream of a context. Built only where there is CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "base/context.h"

namespace kinora::cuda {

// Throws when a CUDA call failed; `what` completes "… failed: out of memory".
void check(cudaError_t status, const char* what);

// Makes the context's device the thread's own and gives the stream to launch on.
cudaStream_t enter(const Context& context);

// Multiprocessors of a device, asked once.
int multiprocessors(int device);

// Whether the thread's device lets a kernel start before the one it follows has ended.
bool starts_early();

}  // namespace kinora::cuda
