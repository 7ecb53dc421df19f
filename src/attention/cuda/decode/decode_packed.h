// Launches the decode kernel for rows in 8 bits (decode_packed_cuda.cuh), kept in a file of its
// own: it takes long to compile.
#pragma once

#include <cstdint>

#include "base/context.h"
#include "base/dtype.h"

namespace kinora::cuda_attention {

struct DecodeArguments;
struct PairTiles;

// Whether a block of the device has enough shared memory. Head sizes are 64 and 128.
bool runs_packed_on(const Context& context, int64_t head_size);

// How up to `pairs` pairs of a kv head and sequence are cut for `splits` blocks of a kv head.
PairTiles cut_packed(int pairs, int splits);

// Rows of type i8 or u8. Whether the parts are joined: otherwise join_pairs has to do it.
bool launch_packed(const Context& context, const DecodeArguments& arguments, const PairTiles& tiles,
                   int64_t head_size, DType row_type);

}  // namespace kinora::cuda_attention
