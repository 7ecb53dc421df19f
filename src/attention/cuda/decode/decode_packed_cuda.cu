#include <algorithm>

#include "attention/cuda/decode/decode_packed.h"
#include "attention/cuda/decode/decode_packed_cuda.cuh"
#include "base/cuda_support.h"

namespace kinora::cuda_attention {
namespace {

constexpr int most_tiles = 4;  // of eight pairs, that a block takes

template <int HeadSize, int Tiles, typename T>
void launch_kernel(cudaStream_t stream, const DecodeArguments& arguments, const PairTiles& tiles) {
  constexpr size_t bytes = packed_shared_bytes<HeadSize, Tiles>;
  cuda::check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(decode_packed<HeadSize, Tiles, T>),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "preparing decode attention");
  cuda::launch_early(
      {dim3(static_cast<unsigned int>(tiles.parts), static_cast<unsigned int>(arguments.kv_heads),
            static_cast<unsigned int>(tiles.full)),
       packed_warps * 32, bytes, stream},
      "decode attention", decode_packed<HeadSize, Tiles, T>, arguments);
}

template <int HeadSize, typename T>
void launch_tiles(cudaStream_t stream, const DecodeArguments& arguments, const PairTiles& tiles) {
  if (tiles.rows == 8) return launch_kernel<HeadSize, 1, T>(stream, arguments, tiles);
  if (tiles.rows == 16) return launch_kernel<HeadSize, 2, T>(stream, arguments, tiles);
  launch_kernel<HeadSize, most_tiles, T>(stream, arguments, tiles);
}

}  // namespace

bool runs_packed_on(const Context& context, int64_t head_size) {
  const size_t bytes =
      head_size == 128 ? packed_shared_bytes<128, most_tiles> : packed_shared_bytes<64, most_tiles>;
  return bytes <= cuda::most_shared_memory(context);
}

PairTiles cut_packed(int pairs, int splits) {
  PairTiles tiles;
  tiles.rows = pairs <= 8 ? 8 : pairs <= 16 ? 16 : 8 * most_tiles;
  tiles.full = (pairs + tiles.rows - 1) / tiles.rows;
  tiles.parts = std::clamp(splits / tiles.full, 1, packed_parts);  // tiles keep the device busy too
  return tiles;
}

bool launch_packed(const Context& context, const DecodeArguments& arguments, const PairTiles& tiles,
                   int64_t head_size, DType row_type) {
  const cudaStream_t stream = cuda::enter(context);
  const auto launch = [&](auto code) {
    using T = decltype(code);
    head_size == 128 ? launch_tiles<128, T>(stream, arguments, tiles)
                     : launch_tiles<64, T>(stream, arguments, tiles);
  };
  row_type == DType::u8 ? launch(e4m3()) : launch(int8_t());
  return tiles.rows == 8 || tiles.parts == 1;
}

}  // namespace kinora::cuda_attention
