#include "product_peak.h"

#include <atomic>
#include <chrono>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif
#include "ops/packed_matmul.h"
#include "ops/x86_intrinsics.h"

namespace kinora::bench {
namespace {

// Each function does `rounds` rounds of independent products and returns the operations.
#if defined(__x86_64__)

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig config;

__attribute__((target("amx-tile,amx-bf16"))) double multiply_tiles(int64_t rounds) {
  _tile_loadconfig(&config);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 4 * 2.0 * 16 * 16 * 32 * static_cast<double>(rounds);
}

__attribute__((target("amx-tile,amx-int8"))) double multiply_byte_tiles(int64_t rounds) {
  _tile_loadconfig(&config);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
  return 4 * 2.0 * 16 * 16 * 64 * static_cast<double>(rounds);
}

// An instruction as text: the compiler would see that its results are not used.
__attribute__((target("avx512f,avx512bf16"))) double multiply_vectors(int64_t rounds) {
  constexpr int chains = 16;
  const __m512i factor = _mm512_setzero_si512();
  __m512 sums[chains];
#pragma GCC unroll 16
  for (int i = 0; i < chains; ++i) sums[i] = _mm512_setzero_ps();
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < chains; ++i) {
      asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sums[i]) : "v"(factor));
    }
  }
  return chains * 2.0 * 32 * static_cast<double>(rounds);
}

__attribute__((target("avx512f,avx512vnni"))) double multiply_byte_vectors(int64_t rounds) {
  constexpr int chains = 16;
  const __m512i factor = _mm512_setzero_si512();
  __m512i sums[chains];
#pragma GCC unroll 16
  for (int i = 0; i < chains; ++i) sums[i] = _mm512_setzero_si512();
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < chains; ++i) {
      asm volatile("vpdpbusd %1, %1, %0" : "+v"(sums[i]) : "v"(factor));
    }
  }
  return chains * 2.0 * 64 * static_cast<double>(rounds);
}

#elif defined(__aarch64__)

__attribute__((target("arch=armv8.2-a+bf16"))) double multiply_pairs(int64_t rounds) {
  constexpr int chains = 24;
  const uint16x8_t factor = vdupq_n_u16(0);
  float32x4_t sums[chains];
#pragma GCC unroll 24
  for (int i = 0; i < chains; ++i) sums[i] = vdupq_n_f32(0);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < chains; ++i) {
      asm volatile("bfmmla %0.4s, %1.8h, %1.8h" : "+w"(sums[i]) : "w"(factor));
    }
  }
  return chains * 2.0 * 16 * static_cast<double>(rounds);
}

__attribute__((target("arch=armv8.2-a+i8mm"))) double multiply_byte_matrices(int64_t rounds) {
  constexpr int chains = 24;
  const int8x16_t factor = vdupq_n_s8(0);
  int32x4_t sums[chains];
#pragma GCC unroll 24
  for (int i = 0; i < chains; ++i) sums[i] = vdupq_n_s32(0);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < chains; ++i) {
      asm volatile("smmla %0.4s, %1.16b, %1.16b" : "+w"(sums[i]) : "w"(factor));
    }
  }
  return chains * 2.0 * 32 * static_cast<double>(rounds);
}

__attribute__((target("arch=armv8.2-a+dotprod"))) double multiply_byte_dots(int64_t rounds) {
  constexpr int chains = 24;
  const int8x16_t factor = vdupq_n_s8(0);
  int32x4_t sums[chains];
#pragma GCC unroll 24
  for (int i = 0; i < chains; ++i) sums[i] = vdupq_n_s32(0);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < chains; ++i) {
      asm volatile("sdot %0.4s, %1.16b, %1.16b" : "+w"(sums[i]) : "w"(factor));
    }
  }
  return chains * 2.0 * 16 * static_cast<double>(rounds);
}

#endif

double multiply([[maybe_unused]] std::string_view instructions, [[maybe_unused]] int64_t rounds) {
#if defined(__x86_64__)
  return instructions == "AMX" ? multiply_tiles(rounds) : multiply_vectors(rounds);
#elif defined(__aarch64__)
  return multiply_pairs(rounds);
#else
  return 0;
#endif
}

double multiply_bytes([[maybe_unused]] std::string_view instructions,
                      [[maybe_unused]] int64_t rounds) {
#if defined(__x86_64__)
  return instructions == "AMX" ? multiply_byte_tiles(rounds) : multiply_byte_vectors(rounds);
#elif defined(__aarch64__)
  return instructions == "SMMLA" ? multiply_byte_matrices(rounds) : multiply_byte_dots(rounds);
#else
  return 0;
#endif
}

template <class Multiply>
double measure(const Context& context, double seconds, const Multiply& multiply_some) {
  using Clock = std::chrono::steady_clock;
  std::atomic<double> total{0};
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  context.threads->parallel_for(context.threads->threads(), 1, [&](int64_t, int64_t) {
    double done = 0;
    while (elapsed() < seconds) done += multiply_some(10000);
    total.fetch_add(done);
  });
  return total.load() / elapsed();
}

}  // namespace

double measure_bf16_peak(const Context& context, const cpu::Bf16Product& product, double seconds) {
  return measure(context, seconds,
                 [&](int64_t rounds) { return multiply(product.instructions, rounds); });
}

std::string_view byte_instructions() {
  if (cpu::packed_amx_int8_available()) return "AMX";
  if (cpu::vnni_panel_kernels() != nullptr) return "VNNI";
  if (cpu::arm_matrix_kernels() != nullptr) return "SMMLA";
  return cpu::arm_dot_kernels() != nullptr ? "SDOT" : "";
}

double measure_byte_peak(const Context& context, double seconds) {
  return measure(context, seconds,
                 [&](int64_t rounds) { return multiply_bytes(byte_instructions(), rounds); });
}

}  // namespace kinora::bench
