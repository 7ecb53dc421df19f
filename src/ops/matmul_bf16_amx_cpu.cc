#include "ops/matmul_bf16_x86.h"
#include "ops/x86_intrinsics.h"

// Intel's AMX: registers of 16 rows of 64 bytes, and TDPBF16PS, which multiplies two of them.
// Nothing here may run before the processor has been asked, and the kernel, which keeps room for
// such registers only for processes that want it.

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KINORA_AMX_TARGET __attribute__((target("amx-tile,amx-bf16")))

namespace kinora::cpu {
namespace {

// What LDTILECFG reads: eight registers of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
// A constant: GCC 12 takes LDTILECFG for an instruction that reads eight bytes, and leaves out what
// is written to the others just before.
constexpr TileConfig config;

KINORA_AMX_TARGET void begin() { _tile_loadconfig(&config); }
// Registers in use make every change of threads dearer.
KINORA_AMX_TARGET void end() { _tile_release(); }

// GCC 12 does not know that loading a tile reads memory.
inline void finish_writing() { asm volatile("" ::: "memory"); }

// Loading a tile waits for its slowest line. Measured: two to four steps ahead are alike, and
// faster than lines in the order in which they lie, even where each row of a tile has a page of its
// own.
constexpr int64_t steps_ahead = 3;

// Where a step's tiles begin, and how far apart their rows are; behind the last stands the next
// panel's first.
struct Tiles {
  const std::byte* at;
  int64_t stride;
};
inline Tiles tiles_at(const Bf16Weights& weights, int64_t step) {
  if (step < weights.steps) return {weights.at + step * weights.step, weights.stride};
  return {weights.next + (step - weights.steps) * weights.step, weights.next_stride};
}

// Registers 0 to 3 are sums, 4 and 5 weights, 6 and 7 rows.
template <int tiles, int parts>
KINORA_AMX_TARGET inline void multiply_step(const std::byte* weights, int64_t stride,
                                            const std::byte* rows) {
  constexpr int64_t row_stride = 64;
  _tile_loadd(4, weights, stride);
#pragma GCC unroll 3
  for (int part = 0; part < parts; ++part, rows += 2 * bf16_tile_bytes) {
    _tile_loadd(6, rows, row_stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (tiles == 2) {
      _tile_loadd(7, rows + bf16_tile_bytes, row_stride);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (part == 0) _tile_loadd(5, weights + bf16_tile_rows * stride, stride);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (tiles == 2) _tile_dpbf16ps(3, 5, 7);
  }
}

template <int tiles, int parts>
KINORA_AMX_TARGET void multiply(const Bf16Weights& weights, const std::byte* rows, float* sums) {
  constexpr int64_t row_step = 2 * parts * bf16_tile_bytes;
  finish_writing();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const std::byte* at = weights.at;
  const std::byte* fetch = weights.fetch;
  for (int64_t i = 0; i < weights.steps; ++i, at += weights.step, rows += row_step) {
    if (weights.next != nullptr) {
      // No function of its own: GCC 12 takes one that only fetches for one that does nothing.
      const Tiles soon = tiles_at(weights, i + steps_ahead);
      for (int64_t row = 0; row < 2 * bf16_tile_rows; ++row) {
        __builtin_prefetch(soon.at + row * soon.stride);
      }
    } else if (fetch != nullptr) {
      for (int64_t line = 0; line < 2 * bf16_tile_rows; ++line) {
        __builtin_prefetch(fetch + line * weights.fetch_stride, 0, 2);  // 2: second-level cache
      }
      fetch += weights.fetch_step;
    }
    multiply_step<tiles, parts>(at, weights.stride, rows);
  }
  if (weights.last != nullptr) multiply_step<tiles, parts>(weights.last, 64, rows);
  constexpr int64_t tile_sums = bf16_tile_sums, sum_stride = 64;
  _tile_stored(0, sums, sum_stride);
  if constexpr (tiles == 2) _tile_stored(1, sums + tile_sums, sum_stride);
  _tile_stored(2, sums + tiles * tile_sums, sum_stride);
  if constexpr (tiles == 2) _tile_stored(3, sums + 3 * tile_sums, sum_stride);
}

constexpr Bf16Kernel kernel{multiply<1, 1>, multiply<2, 1>, multiply<1, 3>,
                            multiply<2, 3>, begin,          end};

void run(const Context& context, std::span<const MatmulWork> products, bool exact) {
  multiply_bf16_x86(context, products, kernel, exact);
}

bool processor_has_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned bf16_products = 1u << 22, tiles = 1u << 24;
  return (d & bf16_products) != 0 && (d & tiles) != 0;
}

// For all threads of the process, those to come as well.
bool kernel_permits_tiles() {
  // Linux has these since 5.16: ARCH_REQ_XCOMP_PERM for the registers themselves.
  constexpr int request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

const Bf16Product* amx_bf16_product() {
  // Measured while decoding: eight rows, one pass over the weights in f32, are faster than tiles
  // where matrices are small, and as fast where they are large. Nine would be two passes.
  static constexpr Bf16Product product{"AMX", true, 9, run};
  static const bool there =
      avx512_bf16_product() != nullptr && processor_has_tiles() && kernel_permits_tiles();
  return there ? &product : nullptr;
}

const Bf16Kernel* amx_bf16_kernel() { return amx_bf16_product() ? &kernel : nullptr; }

}  // namespace kinora::cpu

#else

namespace kinora::cpu {

const Bf16Product* amx_bf16_product() { return nullptr; }

}  // namespace kinora::cpu

#endif
