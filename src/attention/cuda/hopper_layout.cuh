// What the two halves of the Hopper kernel (hopper_kernel.cuh) agree on: arguments, shared memory
// and its barriers, sizes.
#pragma once

#include "attention/cuda/cuda_problem.cuh"
#include "attention/cuda/mma_cuda.cuh"
#include "attention/cuda/runner_hopper.h"
#include "ops/hopper_instructions.cuh"

namespace kinora::hopper {

using namespace cuda_attention;

constexpr int block_keys = 128;
constexpr int group_rows = 64;  // of one consumer warpgroup
constexpr int job_rows = 2 * group_rows;
constexpr int threads = 384;
constexpr int half_tile = 128 * 64;  // elements of 64 columns of 128 rows

struct Arguments {
  CUtensorMap keys;  // (64 columns, rows, halves, kv heads), in boxes of 128 rows
  CUtensorMap values;
  Problem problem;
};

// Every s-th row of memory (StrideLayout). No box reaches beyond the last row.
struct StrideMap {
  CUtensorMap longer;   // (64 columns, steps + 1, the longer phases, halves, kv heads)
  CUtensorMap shorter;  // (64 columns, steps, the other phases, halves, kv heads)
};

// What plans with strided keys need besides.
struct StridedArguments {
  Arguments all;
  StrideMap keys[most_stride_maps];  // in boxes of 128 steps of one phase; CudaSegment::shift says
  StrideMap values[most_stride_maps];  // which
  int32_t row_count = 0;
};

// The maps of one head whose stride the device has found.
struct alignas(128) HeadStrideMaps {
  StrideMap keys, values;
};

// What plans made on the device need besides.
struct PieceArguments {
  Arguments all;
  CUtensorMap key_pieces;  // the same in boxes of 32 rows and one half
  CUtensorMap value_pieces;
  CUtensorMap key_pairs;  // and of 64 rows and one half
  CUtensorMap value_pairs;
  CUtensorMap key_columns;  // copies of columns, of all heads one after another
  CUtensorMap value_columns;
  const HeadStrideMaps* strides = nullptr;  // [heads], where there are strided keys
  int32_t row_count = 0;
};

struct JobSlot {
  CudaJob job;
  int2 place[job_rows];  // query, head
  int32_t limit[job_rows];
};

// What a kernel is made for.
struct Traits {
  int columns = 128;     // of a head, 64 or 128
  bool gather = false;   // plans with gathered segments
  bool strided = false;  // with strided ones
  bool pieces = false;   // made on the device
  bool measure = false;  // scores of blocks go to memory
};

template <Traits T>
struct Variant {
  static constexpr int columns = T.columns;
  static constexpr int halves = columns / 64;
  static constexpr int row_pieces = columns / 8;  // of 16 bytes
  static constexpr int tile = halves * half_tile;
  static constexpr int tile_bytes = tile * 2;
  static constexpr bool gather = T.gather;
  static constexpr bool strided = T.strided;
  static constexpr bool measure = T.measure;
  static constexpr bool watch = false;       // a wait without end becomes an error
  static constexpr int stages = 4 / halves;  // as many bytes are under way
  // Producer warps that copy keys and values; the others load queries. One has keys and one values:
  // a block's keys need a buffer that is free sooner than that of the last block's values, and the
  // warp that has copied a list's last keys looks up the next one at once. Single rows take three
  // warps, which copy both.
  static constexpr int copy_warps = T.gather ? 3 : 2;
  static constexpr int copy_arrivals = T.gather ? copy_warps * 32 : 1;  // at a block's barrier
  static constexpr int producer_registers = T.gather || T.pieces ? 72 : 56;
  static constexpr int consumer_registers = 252 - producer_registers / 2;  // 64,512 in all
};

template <typename V>
struct Shared {
  __nv_bfloat16 queries[2][V::tile];
  __nv_bfloat16 keys[V::stages][V::tile];
  __nv_bfloat16 values[V::stages][V::tile];
  int32_t listed[V::stages][block_keys];  // what is compared with a limit
  JobSlot slots[2];
  BlockInfo blocks[V::stages];
  uint64_t full_query[2], empty_query[2];
  uint64_t full_key[V::stages], empty_key[V::stages];
  uint64_t full_value[V::stages], empty_value[V::stages];
};

// What one of the two copying warps fills: the buffers of keys or those of values.
template <typename V>
struct Target {
  bool keys;
  __nv_bfloat16 (&tiles)[V::stages][V::tile];
  uint64_t (&full)[V::stages];
  uint64_t (&empty)[V::stages];

  __device__ Target(Shared<V>& shared, bool of_keys)
      : keys(of_keys),
        tiles(of_keys ? shared.keys : shared.values),
        full(of_keys ? shared.full_key : shared.full_value),
        empty(of_keys ? shared.empty_key : shared.empty_value) {}
};

// A place in a ring of buffers.
template <int Size>
struct Ring {
  int index = 0;
  uint32_t phase = 0;
  __device__ void next() {
    if (++index == Size) {
      index = 0;
      phase ^= 1;
    }
  }
};

enum NamedBarrier : int { barrier_first_group = 1, barrier_queries = 3, barrier_keys = 4 };

// Byte offset of 16-byte piece `piece` (0 … 7 of each half) of a row of a tile.
__device__ inline uint32_t swizzled(int row, int piece) {
  return static_cast<uint32_t>((piece >> 3) * half_tile * 2 + row * 128 +
                               (((piece & 7) ^ (row & 7)) << 4));
}

}  // namespace kinora::hopper
