#include "ops/packed_cpu.h"

// Products of signed bytes: SDOT (four pairs a lane) for one row or three, SMMLA (2 × 8 by 8 × 2)
// for more. Nothing here may run before the processor has been asked.

#if defined(__aarch64__) && defined(__linux__)

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#define KINORA_DOT_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#define KINORA_F16_TARGET __attribute__((target("arch=armv8.2-a+fp16fml")))
#define KINORA_I8MM_TARGET __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))

namespace kinora::cpu {
namespace {

constexpr int steps = 4;  // of eight columns in a block

inline int64_t span_end(const PanelWeights& panel, int64_t block) {
  const int64_t end = block + panel.span_blocks;
  return end < panel.blocks ? end : panel.blocks;
}

// The rows of one step, two in each register; 4-bit codes of two steps stand in the same bytes.
template <bool four_bits>
inline __attribute__((always_inline)) void load_step(const uint8_t* codes, int step,
                                                     int8x16_t (&weights)[4]) {
#pragma GCC unroll 4
  for (int pair = 0; pair < 4; ++pair) {
    if constexpr (four_bits) {
      const uint8x16_t both = vld1q_u8(codes + step / 2 * 64 + pair * 16);
      weights[pair] =
          vreinterpretq_s8_u8(step % 2 == 0 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4));
    } else {
      weights[pair] = vreinterpretq_s8_u8(vld1q_u8(codes + step * 64 + pair * 16));
    }
  }
}

template <int rows, bool four_bits>
KINORA_DOT_TARGET void dot_panel(const DigitTile& tile, const PanelWeights& panel, float* result) {
  constexpr int64_t block_bytes = four_bits ? 128 : 256;
  float32x4_t sums[rows][2];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) sums[r][0] = sums[r][1] = vdupq_n_f32(0);
  const uint8_t* codes = panel.codes;
  const int8_t* values = tile.values;
  const float* scales = panel.scales;
  const float* own_scales = tile.scales;
  for (int64_t block = 0, group = 0; block < panel.blocks; ++group, scales += 8) {
    const float32x4_t scale0 = vld1q_f32(scales), scale1 = vld1q_f32(scales + 4);
    for (int64_t span = 0; span < panel.group_spans && block < panel.blocks; ++span) {
      int32x4_t parts[rows][4];
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int p = 0; p < 4; ++p) parts[r][p] = vdupq_n_s32(0);
      }
      const int64_t end = span_end(panel, block);
      for (; block < end; ++block, codes += block_bytes, values += steps * rows * 8) {
#pragma GCC unroll 4
        for (int step = 0; step < steps; ++step) {
          int8x16_t weights[4];
          load_step<four_bits>(codes, step, weights);
#pragma GCC unroll 4
          for (int r = 0; r < rows; ++r) {
            const int8x8_t eight = vld1_s8(values + (step * rows + r) * 8);
            const int8x16_t twice = vcombine_s8(eight, eight);
#pragma GCC unroll 4
            for (int p = 0; p < 4; ++p) parts[r][p] = vdotq_s32(parts[r][p], weights[p], twice);
          }
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        const float own = own_scales[r];
        const int32x4_t low = vpaddq_s32(parts[r][0], parts[r][1]);
        const int32x4_t high = vpaddq_s32(parts[r][2], parts[r][3]);
        sums[r][0] = vfmaq_f32(sums[r][0], vcvtq_f32_s32(low), vmulq_n_f32(scale0, own));
        sums[r][1] = vfmaq_f32(sums[r][1], vcvtq_f32_s32(high), vmulq_n_f32(scale1, own));
      }
      own_scales += rows;
    }
    if (panel.zeros != nullptr || panel.zero != 0) {
      const float* zeros = panel.zeros ? panel.zeros + group * 8 : nullptr;
      const float32x4_t zero0 = zeros ? vld1q_f32(zeros) : vdupq_n_f32(panel.zero);
      const float32x4_t zero1 = zeros ? vld1q_f32(zeros + 4) : vdupq_n_f32(panel.zero);
      const float32x4_t shift0 = vmulq_f32(scale0, zero0), shift1 = vmulq_f32(scale1, zero1);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        const float32x4_t sum = vdupq_n_f32(tile.sums[group * rows + r]);
        sums[r][0] = vfmsq_f32(sums[r][0], shift0, sum);
        sums[r][1] = vfmsq_f32(sums[r][1], shift1, sum);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
    vst1q_f32(result + r * 8, sums[r][0]);
    vst1q_f32(result + r * 8 + 4, sums[r][1]);
  }
}

// a, a, b, b of two neighbours, and a, b, a, b.
inline float32x4_t each_twice(const float* two) {
  const float32x2_t both = vld1_f32(two);
  return vcombine_f32(vdup_lane_f32(both, 0), vdup_lane_f32(both, 1));
}
inline float32x4_t both_twice(const float* two) {
  const float32x2_t both = vld1_f32(two);
  return vcombine_f32(both, both);
}

// Sums of a 2 × 2 square of (rows of the tile) × (rows of the panel) stand in one register.
template <int pairs, bool four_bits>
KINORA_I8MM_TARGET void matrix_panel(const DigitTile& tile, const PanelWeights& panel,
                                     float* result) {
  constexpr int rows = 2 * pairs;
  constexpr int64_t block_bytes = four_bits ? 128 : 256;
  float32x4_t sums[pairs][4];
#pragma GCC unroll 4
  for (int p = 0; p < pairs; ++p) {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) sums[p][q] = vdupq_n_f32(0);
  }
  const uint8_t* codes = panel.codes;
  const int8_t* values = tile.values;
  const float* scales = panel.scales;
  const float* own_scales = tile.scales;
  for (int64_t block = 0, group = 0; block < panel.blocks; ++group, scales += 8) {
    for (int64_t span = 0; span < panel.group_spans && block < panel.blocks; ++span) {
      int32x4_t parts[pairs][4];
#pragma GCC unroll 4
      for (int p = 0; p < pairs; ++p) {
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) parts[p][q] = vdupq_n_s32(0);
      }
      const int64_t end = span_end(panel, block);
      for (; block < end; ++block, codes += block_bytes, values += steps * rows * 8) {
#pragma GCC unroll 4
        for (int step = 0; step < steps; ++step) {
          int8x16_t weights[4];
          load_step<four_bits>(codes, step, weights);
#pragma GCC unroll 4
          for (int p = 0; p < pairs; ++p) {
            const int8x16_t own = vld1q_s8(values + (step * rows + 2 * p) * 8);
#pragma GCC unroll 4
            for (int q = 0; q < 4; ++q) parts[p][q] = vmmlaq_s32(parts[p][q], own, weights[q]);
          }
        }
      }
#pragma GCC unroll 4
      for (int p = 0; p < pairs; ++p) {
        const float32x4_t own = each_twice(own_scales + 2 * p);
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {
          sums[p][q] = vfmaq_f32(sums[p][q], vcvtq_f32_s32(parts[p][q]),
                                 vmulq_f32(own, both_twice(scales + 2 * q)));
        }
      }
      own_scales += rows;
    }
    if (panel.zeros != nullptr || panel.zero != 0) {
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        const float32x4_t zero =
            panel.zeros ? both_twice(panel.zeros + group * 8 + 2 * q) : vdupq_n_f32(panel.zero);
        const float32x4_t shift = vmulq_f32(zero, both_twice(scales + 2 * q));
#pragma GCC unroll 4
        for (int p = 0; p < pairs; ++p) {
          sums[p][q] = vfmsq_f32(sums[p][q], shift, each_twice(tile.sums + group * rows + 2 * p));
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < pairs; ++p) {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      vst1_f32(result + 2 * p * 8 + 2 * q, vget_low_f32(sums[p][q]));
      vst1_f32(result + (2 * p + 1) * 8 + 2 * q, vget_high_f32(sums[p][q]));
    }
  }
}

// Eight e4m3 as f16 of 1/256 of them: shifted to where f16 has exponent and fraction, with the bit
// cleared that the sign has spread to.
KINORA_F16_TARGET inline float16x8_t as_f16(int8x8_t codes) {
  return vreinterpretq_f16_s16(vandq_s16(vshll_n_s8(codes, 7), vdupq_n_s16(-0x4001)));
}

template <int rows>
KINORA_F16_TARGET void f16_panel(const uint16_t* values, const PanelWeights& panel, float* result) {
  constexpr int at_once = rows == 1 ? 8 : 4;  // weight rows, so that the sums stay in registers
  for (int top = 0; top < 8; top += at_once) {
    float32x4_t sums[rows][at_once];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
      for (int i = 0; i < at_once; ++i) sums[r][i] = vdupq_n_f32(0);
    }
    const uint8_t* codes = panel.codes + top * 8;
    const uint16_t* own = values;
    for (int64_t block = 0, group = 0; block < panel.blocks; ++group) {
      const int64_t last = block + panel.span_blocks * panel.group_spans;
      const int64_t end = last < panel.blocks ? last : panel.blocks;
      float32x4_t parts[rows][at_once];
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
        for (int i = 0; i < at_once; ++i) parts[r][i] = vdupq_n_f32(0);
      }
      for (int64_t step = 0; step < (end - block) * steps; ++step) {
        float16x8_t a[rows];
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) a[r] = vreinterpretq_f16_u16(vld1q_u16(own + r * 8));
#pragma GCC unroll 4
        for (int i = 0; i < at_once; i += 2) {
          const int8x16_t both = vreinterpretq_s8_u8(vld1q_u8(codes + i * 8));
          const float16x8_t first = as_f16(vget_low_s8(both)), second = as_f16(vget_high_s8(both));
#pragma GCC unroll 4
          for (int r = 0; r < rows; ++r) {
            parts[r][i] = vfmlalq_low_f16(parts[r][i], first, a[r]);
            parts[r][i + 1] = vfmlalq_low_f16(parts[r][i + 1], second, a[r]);
            parts[r][i] = vfmlalq_high_f16(parts[r][i], first, a[r]);
            parts[r][i + 1] = vfmlalq_high_f16(parts[r][i + 1], second, a[r]);
          }
        }
        codes += 64;
        own += rows * 8;
      }
      block = end;
#pragma GCC unroll 8
      for (int i = 0; i < at_once; ++i) {
        const float scale = 256.0f * panel.scales[group * 8 + top + i];
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) sums[r][i] = vfmaq_n_f32(sums[r][i], parts[r][i], scale);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
      for (int i = 0; i < at_once; ++i) result[r * 8 + top + i] = vaddvq_f32(sums[r][i]);
    }
  }
}

PanelKernels make_kernels(bool matrices) {
  PanelKernels kernels;
  kernels.int4 = {nullptr, dot_panel<1, true>, dot_panel<2, true>, dot_panel<3, true>,
                  dot_panel<4, true>};
  kernels.int8 = {nullptr, dot_panel<1, false>, dot_panel<2, false>, dot_panel<3, false>,
                  dot_panel<4, false>};
  if (matrices) {
    kernels.int4[2] = matrix_panel<1, true>, kernels.int8[2] = matrix_panel<1, false>;
    kernels.int4[4] = matrix_panel<2, true>, kernels.int8[4] = matrix_panel<2, false>;
    kernels.int4[6] = matrix_panel<3, true>, kernels.int8[6] = matrix_panel<3, false>;
    kernels.int4[8] = matrix_panel<4, true>, kernels.int8[8] = matrix_panel<4, false>;
  }
  return kernels;
}

}  // namespace

bool fp8_f16_instructions() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDFHM) != 0; }

void fp8_f16_panel(const uint16_t* values, int rows, const PanelWeights& panel, float* result) {
  using Run = void (*)(const uint16_t*, const PanelWeights&, float*);
  static constexpr Run runs[] = {f16_panel<1>, f16_panel<2>, f16_panel<3>, f16_panel<4>};
  runs[rows - 1](values, panel, result);
}

const PanelKernels* arm_dot_kernels() {
  static const PanelKernels kernels = make_kernels(false);
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0 ? &kernels : nullptr;
}

const PanelKernels* arm_matrix_kernels() {
  static const PanelKernels kernels = make_kernels(true);
  const bool matrices = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
  return matrices && arm_dot_kernels() != nullptr ? &kernels : nullptr;
}

}  // namespace kinora::cpu

#else

namespace kinora::cpu {

bool fp8_f16_instructions() { return false; }
void fp8_f16_panel(const uint16_t*, int, const PanelWeights&, float*) {}
const PanelKernels* arm_dot_kernels() { return nullptr; }
const PanelKernels* arm_matrix_kernels() { return nullptr; }

}  // namespace kinora::cpu

#endif
