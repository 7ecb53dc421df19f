// How keys and values in e4m3 lie in memory for attention in FP8 (fp8_kernel.cuh). 32 rows of a kv
// head are a piece: 4 KiB of keys and 4 KiB of values, each exactly as the tensor cores of Hopper
// want it in shared memory, so that a plain copy brings it there. Knows no CUDA header: the tests
// compute with the same functions.
//
//   keys    [kv heads, pieces][32 keys][128 columns], pieces of 16 bytes swizzled over 128 bytes
//   values  [kv heads, pieces][128 columns][32 keys], pieces of 16 bytes swizzled over 32 bytes
//
// Tensor cores multiply FP8 along contiguous bytes only, so values are transposed. The keys of a
// transposed row are in the order of `key_slot`: the thread that computed the weights of some keys
// then has them in the registers that the next product reads, and nothing moves between threads.
//
// Queries and keys are turned before they are rounded: q · k = (T q) · (T k) / 128 where T flips
// the signs of some columns and applies a Hadamard matrix. A column that stands out is spread over
// all of them, and so is the error of rounding it.
#pragma once

#include <cstdint>

#include "attention/cuda/cuda_plan.h"

namespace kinora::fp8_attention {

constexpr int head_size = 128;
constexpr int piece_bytes = piece_keys * head_size;  // of keys, and of values
constexpr float largest_code = 448;                  // of e4m3
// Weights of a block are at most 2^weight_bits.
constexpr int weight_bits = 8;
// A block of 128 keys may begin at any piece: so many pieces of zeros follow the last one.
constexpr int64_t spare_pieces = 3;

constexpr int64_t piece_count(int64_t rows) {
  return (rows + piece_keys - 1) / piece_keys + spare_pieces;
}

// Byte of a column of a key within its piece; the same for queries within tiles of any height.
KINORA_HOST_DEVICE constexpr int key_byte(int row, int column) {
  return row * head_size + (((column >> 4) ^ (row & 7)) << 4) + (column & 15);
}

// Scores come out of a product with columns 8 i + 2 q + c in lane q of four; weights go into the
// next with slots 16 a + 4 q + 2 b + c there, i = 2 a + b.
KINORA_HOST_DEVICE constexpr int key_slot(int key) {
  return (key & 16) | ((key >> 1) & 3) << 2 | ((key >> 3) & 1) << 1 | (key & 1);
}
KINORA_HOST_DEVICE constexpr int key_of_slot(int slot) {
  return (slot & 16) | ((slot >> 1) & 1) << 3 | ((slot >> 2) & 3) << 1 | (slot & 1);
}

// The register of a product's left factor that takes the weights of columns 16 n + 2 q, + 1, + 8
// and
// + 9 of row r or r + 8 of a warp's sixteen (`lower`), for pair n of columns of eight: four
// registers for every piece.
KINORA_HOST_DEVICE constexpr int weight_register(int pair, int lower) {
  return pair / 2 * 4 + pair % 2 * 2 + lower;
}

// Byte of slot `slot` of a column of values within their piece.
KINORA_HOST_DEVICE constexpr int value_byte(int slot, int column) {
  return column * piece_keys + (((slot >> 4) ^ ((column >> 2) & 1)) << 4) + (slot & 15);
}

// The signs of columns 16 part … 16 part + 15, one bit each: digits of the golden ratio, which have
// no pattern that rows of a model could share.
KINORA_HOST_DEVICE constexpr uint32_t flipped(int part) {
  constexpr uint64_t digits[2] = {0x9e3779b97f4a7c15u, 0xf39cc0605cedc834u};
  return static_cast<uint32_t>(digits[part >> 2] >> (16 * (part & 3))) & 0xffffu;
}

// Scores are q · k of turned rows times this.
constexpr float unturned = 1.0f / head_size;

}  // namespace kinora::fp8_attention
