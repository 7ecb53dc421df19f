#include <algorithm>

#include "attention/cuda/decode/decode_many.h"
#include "attention/cuda/decode/decode_many_cuda.cuh"
#include "attention/cuda/runner_hopper.h"
#include "base/cuda_support.h"

namespace kinora::hopper {
namespace {

constexpr size_t many_shared_bytes = sizeof(ManyShared) + 1024;

}  // namespace

bool runs_many_on(const Context& context) {
  return runs_on(context.device.index) && many_shared_bytes <= cuda::most_shared_memory(context);
}

// The rows of a tile of up to 64 pairs are shared by two warpgroups and take half as long: it gets
// half as many parts.
PairTiles cut_many(int pairs, int splits) {
  const int halves = (pairs + group_rows - 1) / group_rows;
  PairTiles tiles;
  tiles.rows = many_pairs;
  tiles.full = halves / 2;
  tiles.parts = std::max(1, 2 * splits / halves);
  tiles.last_parts = halves % 2 == 0 ? 0 : std::max(1, splits - tiles.full * tiles.parts);
  tiles.halves = true;
  return tiles;
}

void launch_many(const Context& context, const DecodeArguments& arguments, const PairTiles& tiles) {
  cuda::check(cudaFuncSetAttribute(reinterpret_cast<const void*>(decode_many<>),
                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(many_shared_bytes)),
              "preparing decode attention");
  const int blocks = tiles.full * tiles.parts + tiles.last_parts;
  cuda::launch_early(
      {dim3(static_cast<unsigned int>(blocks), static_cast<unsigned int>(arguments.kv_heads)),
       threads, many_shared_bytes, cuda::enter(context)},
      "decode attention", decode_many<>, arguments, tiles);
}

}  // namespace kinora::hopper
