#include "ops/packed_cpu.h"
#include "ops/x86_intrinsics.h"

// AVX-512 VNNI multiplies unsigned bytes by signed ones, four pairs a lane: a unit of codes is one
// register, with two lanes a row. Nothing here may run before the processor has been asked.

#if defined(__x86_64__) && defined(__linux__)

#include <utility>

#define KINORA_VNNI_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vnni")))

namespace kinora::cpu {
namespace {

constexpr int steps = 4;  // of eight columns in a block

// Eight numbers, each in two neighbouring lanes.
KINORA_VNNI_TARGET inline __m512 each_twice(const float* eight) {
  const __m512i index = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(_mm256_loadu_ps(eight)));
}

template <int rows, int panels, bool four_bits>
KINORA_VNNI_TARGET void vnni_panels(const DigitTile& tile, const PanelWeights& panel,
                                    float* result) {
  constexpr int64_t block_bytes = four_bits ? 128 : 256;
  const __m512i low_half = _mm512_set1_epi8(15), sign = _mm512_set1_epi8(-128);
  // Signed bytes become unsigned ones by 128 more, which their zero then has too.
  const float more = four_bits ? 0.0f : 128.0f;
  __m512 sums[panels][rows];
#pragma GCC unroll 4
  for (int p = 0; p < panels; ++p) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) sums[p][r] = _mm512_setzero_ps();
  }
  const uint8_t* codes = panel.codes;
  const int8_t* values = tile.values;
  const float* own_scales = tile.scales;
  int64_t block = 0;
  for (int64_t group = 0; block < panel.blocks; ++group) {
    for (int64_t span = 0; span < panel.group_spans && block < panel.blocks; ++span) {
      const int64_t last = block + panel.span_blocks;
      const int64_t end = last < panel.blocks ? last : panel.blocks;
      __m512i parts[panels][rows];
#pragma GCC unroll 4
      for (int p = 0; p < panels; ++p) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) parts[p][r] = _mm512_setzero_si512();
      }
      for (; block < end; ++block, codes += block_bytes, values += steps * rows * 8) {
#pragma GCC unroll 4
        for (int step = 0; step < steps; ++step) {
          __m512i weights[panels];
#pragma GCC unroll 4
          for (int p = 0; p < panels; ++p) {
            const uint8_t* own = codes + p * panel.code_stride;
            if constexpr (four_bits) {
              const __m512i both = _mm512_loadu_si512(own + step / 2 * 64);
              weights[p] =
                  _mm512_and_si512(step % 2 == 0 ? both : _mm512_srli_epi16(both, 4), low_half);
            } else {
              weights[p] = _mm512_xor_si512(_mm512_loadu_si512(own + step * 64), sign);
            }
          }
#pragma GCC unroll 8
          for (int r = 0; r < rows; ++r) {
            long long eight;
            __builtin_memcpy(&eight, values + (step * rows + r) * 8, sizeof(eight));
            const __m512i row = _mm512_set1_epi64(eight);
#pragma GCC unroll 4
            for (int p = 0; p < panels; ++p) {
              parts[p][r] = _mm512_dpbusd_epi32(parts[p][r], weights[p], row);
            }
          }
        }
      }
#pragma GCC unroll 4
      for (int p = 0; p < panels; ++p) {
        const __m512 scale = each_twice(panel.scales + p * panel.scale_stride + group * 8);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
          const __m512 own = _mm512_mul_ps(scale, _mm512_set1_ps(own_scales[r]));
          sums[p][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(parts[p][r]), own, sums[p][r]);
        }
      }
      own_scales += rows;
    }
    if (!four_bits || panel.zeros != nullptr || panel.zero != 0) {
#pragma GCC unroll 4
      for (int p = 0; p < panels; ++p) {
        const int64_t at = p * panel.scale_stride + group * 8;
        const __m512 zero =
            _mm512_add_ps(panel.zeros ? each_twice(panel.zeros + at) : _mm512_set1_ps(panel.zero),
                          _mm512_set1_ps(more));
        const __m512 shift = _mm512_mul_ps(each_twice(panel.scales + at), zero);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {  // half of it in each of a row's two lanes
          const __m512 half = _mm512_set1_ps(0.5f * tile.sums[group * rows + r]);
          sums[p][r] = _mm512_fnmadd_ps(shift, half, sums[p][r]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < panels; ++p) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      alignas(64) float lanes[16];
      _mm512_store_ps(lanes, sums[p][r]);
      for (int i = 0; i < 8; ++i) result[(p * rows + r) * 8 + i] = lanes[2 * i] + lanes[2 * i + 1];
    }
  }
}

// With more rows the sums of several panels have no room in registers.
constexpr int most_several_rows = 4;

template <int rows, bool four_bits>
constexpr PanelKernel several() {
  if constexpr (rows <= most_several_rows) {
    return vnni_panels<rows, PanelKernels::several, four_bits>;
  } else {
    return nullptr;
  }
}

template <int... row>
PanelKernels make_kernels(std::integer_sequence<int, row...>) {
  PanelKernels kernels;
  kernels.int4 = {nullptr, vnni_panels<row + 1, 1, true>...};
  kernels.int8 = {nullptr, vnni_panels<row + 1, 1, false>...};
  kernels.several_int4 = {nullptr, several<row + 1, true>()...};
  kernels.several_int8 = {nullptr, several<row + 1, false>()...};
  return kernels;
}

}  // namespace

const PanelKernels* vnni_panel_kernels() {
  static const PanelKernels kernels =
      make_kernels(std::make_integer_sequence<int, most_tile_rows>());
  static const bool there = __builtin_cpu_supports("avx512vnni") != 0 &&
                            __builtin_cpu_supports("avx512bw") != 0 &&
                            __builtin_cpu_supports("avx512dq") != 0;
  return there ? &kernels : nullptr;
}

}  // namespace kinora::cpu

#else

namespace kinora::cpu {

const PanelKernels* vnni_panel_kernels() { return nullptr; }

}  // namespace kinora::cpu

#endif
