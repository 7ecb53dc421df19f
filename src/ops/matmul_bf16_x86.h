// How x86-64 multiplies bf16, whichever instructions do it: what is packed, and which tiles run
// where. Used only by matmul_bf16_*_cpu.cc and packed_amx*_cpu.cc.
//
// Weights are the left factor. A tile of them is 32 values of 16 rows as they lie in the matrix, so
// that packing is copying, and few rows of `a` need not even that. `a`, which is packed once for
// all weights, is the right factor and bears the interleaving: a tile holds pairs of values of 16
// rows. Sums come out with a row for each weight and are turned while they are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/context.h"
#include "ops/matmul_blocks.h"
#include "ops/matmul_cpu.h"

#define KINORA_AVX512_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512bf16")))

namespace kinora::cpu {

constexpr int64_t bf16_tile_rows = 16;              // of either factor
constexpr int64_t bf16_tile_k = 32;                 // values of k in a tile
constexpr int64_t bf16_tile_bytes = 1024;           // of a tile of either factor, and of sums
constexpr int64_t bf16_panel = 2 * bf16_tile_rows;  // rows of a factor that meet at once
constexpr int64_t bf16_panel_step = 2 * bf16_tile_bytes;
constexpr int64_t bf16_tile_sums = bf16_tile_rows * bf16_tile_rows;
// Packed weights of one task take half of a second-level cache of 2 MiB.
constexpr BlockShape bf16_blocks{bf16_panel, bf16_panel, bf16_tile_k, 1024, 16};

// Two tiles of weights side by side, over some of k.
struct Bf16Weights {
  const std::byte* at = nullptr;
  int64_t stride = 0;  // bytes from one row to the next
  int64_t step = 0;    // bytes to the next 32 values
  int64_t steps = 0;
  const std::byte* last = nullptr;  // one more step, packed without gaps; null: none
  // 32 lines of memory a step that are soon needed; null: none.
  const std::byte* fetch = nullptr;
  int64_t fetch_stride = 0;  // bytes from one line to the next
  int64_t fetch_step = 0;    // bytes to those of the next step
  // Of weights that come from memory, those that follow: a kernel that takes a tile at a time
  // fetches tiles shortly before their turn, these after its own, and not the lines above.
  const std::byte* next = nullptr;
  int64_t next_stride = 0;
};

// sums[2][tiles][16][16] = two tiles of weights × `tiles` tiles of rows, over all steps.
// rows: [steps][parts][2][16 pairs of values][16 rows][2], of which the first `tiles` are read. The
// parts of a row are added up.
using Bf16Multiply = void (*)(const Bf16Weights& weights, const std::byte* rows, float* sums);

struct Bf16Kernel {
  Bf16Multiply one_tile = nullptr, two_tiles = nullptr;              // of rows in one part
  Bf16Multiply one_exact_tile = nullptr, two_exact_tiles = nullptr;  // in three
  // Called on the thread that multiplies, before and after many products.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;

  Bf16Multiply multiply(int64_t rows, int parts) const {
    if (rows <= bf16_tile_rows) return parts == 1 ? one_tile : one_exact_tile;
    return parts == 1 ? two_tiles : two_exact_tiles;
  }
};

// Null where amx_bf16_product() is.
const Bf16Kernel* amx_bf16_kernel();

// Products of the same rows.
void multiply_bf16_x86(const Context& context, std::span<const MatmulWork> products,
                       const Bf16Kernel& kernel, bool exact);

// One value of `a` in so many parts.
template <int parts>
struct Bf16Parts {
  uint16_t values[parts];
};

// `count` rows of `a` into [k / 32][parts][2][16 pairs][16 rows][2], parts 1 or 3; what is missing
// is zero, but of the second tile nothing is written where the first takes all rows.
void pack_bf16_rows(const float* rows, int64_t stride, int64_t count, int64_t k, int parts,
                    std::byte* to);

// Sums of two tiles of weights × one or two of rows, and where they go.
struct Bf16Sums {
  int64_t row = 0, rows = 0;   // of out
  int64_t column = 0;          // of the first weight
  int64_t begin = 0, end = 0;  // columns that are written
  bool first = false;          // of the blocks of k
  alignas(64) float values[4 * bf16_tile_sums];
};
void write_bf16_sums(const MatmulWork& work, const Bf16Sums& sums);

}  // namespace kinora::cpu
