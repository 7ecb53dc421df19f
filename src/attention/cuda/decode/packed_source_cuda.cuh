// How the decode kernel for rows in 8 bits (decode_packed_cuda.cuh) streams rows: each warp has its
// own ring in shared memory, and fills it with raw bytes in pieces of 8, or of 4 for heads of 64,
// because a head with its scales is no multiple of 16 bytes.
#pragma once

#include "attention/cuda/decode/decode_batch_cuda.cuh"
#include "attention/cuda/decode/row_codes_cuda.cuh"

namespace kinora::cuda_attention {

constexpr int packed_warps = 8;
constexpr int packed_keys = 16;  // of a stage of a warp
constexpr int packed_stages = 4;
constexpr int packed_parts = 256;  // parts of a pair that fit into the ring when they are joined
// Rows right before the new ones are not read early: a line of the cache might hold both.
constexpr int packed_margin = 2;

// Keys or values of a stage: the codes of all rows, then their scales.
template <int HeadSize>
constexpr uint32_t packed_tile_bytes = packed_keys* packed_head_bytes<HeadSize>;
template <int HeadSize>
constexpr size_t packed_ring_bytes =
    size_t{packed_warps} * packed_stages * 2 * packed_tile_bytes<HeadSize>;
static_assert(packed_parts * (128 + 4) * sizeof(float) <= packed_ring_bytes<128>);
static_assert(packed_parts * (64 + 4) * sizeof(float) <= packed_ring_bytes<64>);
static_assert(packed_margin * packed_head_bytes<64> >= 128);

// Where byte `byte` of a row's codes lies in a tile. Rows and their spans of 32 bytes change
// places, so that neither four neighbouring rows nor every second one of eight meet in a bank.
template <int HeadSize>
__host__ __device__ constexpr uint32_t code_offset(int row, int byte) {
  const int slot = row ^ (row >> 2 & 1);
  const int turn = HeadSize == 128 ? slot & 3 : slot >> 1 & 1;
  return static_cast<uint32_t>(slot * HeadSize + (byte ^ turn * 32));
}
// The same for row 2 · step + lane / 16 and piece lane % 16: what changes with the step is known
// when this is compiled.
template <int HeadSize>
__host__ __device__ constexpr uint32_t piece_target(int step, int lane) {
  const int half = lane / 16, byte = lane % 16 * (HeadSize / 16);
  const int wide = HeadSize == 128 ? 1 : 0;
  const int first = half * HeadSize + (byte ^ half * wide * 32);
  const int change = (step >> 1 & 1) * (HeadSize + wide * 32) ^ (step & 1) * 32 * (1 + wide);
  return static_cast<uint32_t>(step * 2 * HeadSize + (first ^ change));
}
template <int HeadSize>
constexpr bool targets_agree() {
  for (int step = 0; step < packed_keys / 2; ++step) {
    for (int lane = 0; lane < 32; ++lane) {
      const int byte = lane % 16 * (HeadSize / 16);
      if (piece_target<HeadSize>(step, lane) != code_offset<HeadSize>(2 * step + lane / 16, byte)) {
        return false;
      }
    }
  }
  return true;
}
static_assert(targets_agree<64>() && targets_agree<128>());

// The same number, as if it had just been found out: what follows from it is worked out where it is
// needed, and does not take registers all along a loop.
__device__ inline int anew(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ inline uint32_t load_shared(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
__device__ inline float load_shared_scale(uint32_t address) {
  uint16_t bits;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(address) : "memory");
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
__device__ inline uint2 load_shared_two(uint32_t address) {
  uint2 words;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(words.x), "=r"(words.y)
               : "r"(address)
               : "memory");
  return words;
}
__device__ inline uint4 load_shared_four(uint32_t address) {
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}
template <int HeadSize>
__device__ inline HeadScales<HeadSize> load_shared_scales(uint32_t address) {
  HeadScales<HeadSize> scales;
  if constexpr (HeadSize == 128) {
    const uint2 words = load_shared_two(address);
    scales.words[0] = words.x;
    scales.words[1] = words.y;
  } else {
    scales.words[0] = load_shared(address);
  }
  return scales;
}

// Streams a warp's tiles of rows into its ring.
template <int HeadSize>
class PackedSource {
 public:
  __device__ PackedSource(const DecodeArguments& a, const DeviceSequence& sequence,
                          const Stretch& stretch, const char* memory)
      : a_(a), sequence_(sequence), stretch_(stretch), memory_(memory) {}

  __device__ int32_t begin_of(int tile) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    return stretch_.begin + (tile * packed_warps + warp) * packed_keys;
  }
  __device__ uint32_t stage_of(int tile) const {
    const int stage = static_cast<int>(threadIdx.x) / 32 * packed_stages + tile % packed_stages;
    return address_of(memory_) + static_cast<uint32_t>(stage) * 2 * packed_tile_bytes<HeadSize>;
  }
  // Tile number `tile` into its stage; one group of copies, even where there is no such tile.
  __device__ void load(int tile) {
    constexpr int piece_bytes = HeadSize / 16;  // also those of a row's scales
    constexpr int head_bytes = packed_head_bytes<HeadSize>;
    constexpr uint32_t tile_bytes = packed_tile_bytes<HeadSize>;
    const int lane = anew(static_cast<int>(threadIdx.x) % 32), half = lane / 16, piece = lane % 16;
    const int32_t first = begin_of(tile), row_stride = a_.kv_heads * head_bytes;
    if (first < stretch_.end) {
      if (at_.seek(sequence_, first)) {
        const DeviceRowSet& set = sequence_.sets[at_.index];
        const int head_offset = static_cast<int>(blockIdx.y) * head_bytes;
        keys_ = static_cast<const uint8_t*>(set.keys) + head_offset;
        values_ = static_cast<const uint8_t*>(set.values) + head_offset;
        list_ = set.list;
        count_ = static_cast<int32_t>(set.count);
      }
      const uint32_t target = stage_of(tile);
      const int32_t place = first - at_.begin, left = count_ - place;
      // Half of the lanes bring the scales of keys, the others those of values.
      int32_t own = piece < left ? place + piece : 0;
      if (list_ != nullptr && piece < left) own = list_[own];
      copy_small_piece<piece_bytes>(
          target + half * tile_bytes + static_cast<uint32_t>(packed_keys * HeadSize) +
              static_cast<uint32_t>(piece * piece_bytes),
          (half == 0 ? keys_ : values_) + int64_t{own} * row_stride + HeadSize,
          piece < left ? piece_bytes : 0);
#pragma unroll
      for (int step = 0; step < packed_keys / 2; ++step) {
        const int row = 2 * step + half;
        const bool inside = row < left;
        const int32_t from =
            list_ != nullptr ? __shfl_sync(0xffffffff, own, row) : (inside ? place + row : 0);
        const int64_t offset = int64_t{from} * row_stride + piece * piece_bytes;
        const uint32_t to = target + piece_target<HeadSize>(step, lane);
        copy_small_piece<piece_bytes>(to, keys_ + offset, inside ? piece_bytes : 0);
        copy_small_piece<piece_bytes>(to + tile_bytes, values_ + offset, inside ? piece_bytes : 0);
      }
    }
    commit_copies();
  }

 private:
  const DecodeArguments& a_;
  const DeviceSequence& sequence_;
  const Stretch& stretch_;
  const char* memory_;
  SetCursor at_;
  const uint8_t *keys_ = nullptr, *values_ = nullptr;
  const int32_t* list_ = nullptr;
  int32_t count_ = 0;
};

}  // namespace kinora::cuda_attention
