#include <algorithm>

#include "attention/cuda/decode/decode_many.h"
#include "attention/cuda/decode/decode_many_cuda.cuh"
#include "attention/cuda/runner_hopper.h"
#include "base/cuda_support.h"
#include "ops/tensor_maps_cuda.h"

namespace kinora::hopper {
namespace {

constexpr size_t many_shared_bytes = sizeof(ManyShared) + 1024;

// Reaches as far below an address of the device as above it. Nothing is read but what lies in sets.
AllMemory memory_around(const void* address, int64_t kv_heads) {
  constexpr uintptr_t region = uintptr_t{1} << (stretch_bits + region_bits);
  constexpr uintptr_t stretch = 1 << stretch_bits, before = memory_regions / 2 * region;
  const auto at = reinterpret_cast<uintptr_t>(address) / stretch * stretch;
  AllMemory memory{};
  memory.begin = reinterpret_cast<const char*>(at > before ? at - before : stretch);
  const cuuint64_t sizes[4] = {64, block_keys, (1 << region_bits) + 1, memory_regions};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(kv_heads * head_size * 2), stretch,
                                 region};
  const cuuint32_t box[4] = {64, block_keys, 2, 1};
  memory.map = describe(reinterpret_cast<const std::byte*>(memory.begin), 4, sizes, strides, box);
  return memory;
}

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
      "decode attention", decode_many<>, arguments, tiles,
      memory_around(arguments.part_out, arguments.kv_heads));
}

}  // namespace kinora::hopper
