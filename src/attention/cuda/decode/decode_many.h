// Launches the Hopper decode kernel (decode_many_cuda.cuh), kept in a file of its own: it takes
// long to compile and its registers are watched by the build.
#pragma once

#include "base/context.h"

namespace kinora::cuda_attention {
struct DecodeArguments;
struct PairTiles;
}  // namespace kinora::cuda_attention

namespace kinora::hopper {

// Whether the device has what the kernel needs and this program was compiled for it.
bool runs_many_on(const Context& context);

// How up to `pairs` pairs of a kv head and sequence are cut for `splits` blocks of a kv head.
cuda_attention::PairTiles cut_many(int pairs, int splits);

// bf16 rows, head size 128, queries in 16-byte pieces. The parts are not joined yet.
void launch_many(const Context& context, const cuda_attention::DecodeArguments& arguments,
                 const cuda_attention::PairTiles& tiles);

}  // namespace kinora::hopper
