#include <array>
#include <utility>

#include "ops/packed_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/packed_portable_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace kinora::HWY_NAMESPACE;

constexpr int steps = 4;  // of eight columns in a block
constexpr int64_t eight = 8;
constexpr int tile_rows = 4;

#if HWY_TARGET == HWY_SCALAR

template <int rows, bool four_bits>
void panel_product(const DigitTile& tile, const PanelWeights& panel, float* result) {
  constexpr int64_t block_bytes = four_bits ? 128 : 256;
  for (int r = 0; r < rows; ++r) {
    for (int64_t row = 0; row < eight; ++row) {
      float sum = 0;
      for (int64_t block = 0; block < panel.blocks; ++block) {
        const int64_t span = block / panel.span_blocks, group = span / panel.group_spans;
        const uint8_t* codes = panel.codes + block * block_bytes + row * eight;
        int32_t part = 0;
        for (int64_t i = 0; i < steps * eight; ++i) {
          const int64_t step = i / eight;
          const int code = four_bits ? codes[step / 2 * 64 + i % eight] >> (step % 2 * 4) & 15
                                     : static_cast<int8_t>(codes[step * 64 + i % eight]);
          part += code * tile.values[((block * steps + step) * rows + r) * eight + i % eight];
        }
        const float scale = panel.scales[group * eight + row];
        sum += static_cast<float>(part) * (scale * tile.scales[span * rows + r]);
        if (block % (panel.span_blocks * panel.group_spans) == 0) {
          const float zero = panel.zeros ? panel.zeros[group * eight + row] : panel.zero;
          sum -= scale * zero * tile.sums[group * rows + r];
        }
      }
      result[r * eight + row] = sum;
    }
  }
}

#else

using Bytes = hn::ScalableTag<int8_t>;
using Shorts = hn::Repartition<int16_t, Bytes>;
using Words = hn::Repartition<int32_t, Bytes>;
using Floats = hn::Repartition<float, Bytes>;
constexpr int unit_vectors = int(64 / hn::MaxLanes(Bytes()));  // a row has two lanes of 32 bits
constexpr int64_t lanes = hn::MaxLanes(Floats());

// sum + the products of four neighbouring bytes in every lane of 32 bits. Codes of 4 bits are not
// negative.
template <bool four_bits>
HWY_INLINE hn::Vec<Words> add_products(hn::Vec<Words> sum, hn::Vec<Bytes> codes,
                                       hn::Vec<Bytes> values) {
#if HWY_TARGET == HWY_AVX2
  const __m256i positive = four_bits ? codes.raw : _mm256_abs_epi8(codes.raw);
  const __m256i other = four_bits ? values.raw : _mm256_sign_epi8(values.raw, codes.raw);
  const __m256i pairs = _mm256_maddubs_epi16(positive, other);  // at most 2 × 128 × 127
  return hn::Add(sum, hn::Vec<Words>{_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))});
#else
  const Shorts d16;
  const Words d32;
  const auto w = hn::BitCast(d16, codes), a = hn::BitCast(d16, values);
  const auto even =
      hn::Mul(hn::ShiftRight<8>(hn::ShiftLeft<8>(w)), hn::ShiftRight<8>(hn::ShiftLeft<8>(a)));
  const auto odd = hn::Mul(hn::ShiftRight<8>(w), hn::ShiftRight<8>(a));
  const auto pairs = hn::BitCast(d32, hn::Add(even, odd));  // at most 2 × 128 × 127
  return hn::Add(sum,
                 hn::Add(hn::ShiftRight<16>(hn::ShiftLeft<16>(pairs)), hn::ShiftRight<16>(pairs)));
#endif
}

// Vector `index` of a unit's sixteen lanes: the numbers of its rows, each in two lanes.
HWY_INLINE hn::Vec<Floats> each_twice(const float* rows, int index) {
  const hn::Repartition<uint64_t, Floats> d64;
  const hn::Rebind<uint32_t, decltype(d64)> d32;
  const auto from = reinterpret_cast<const uint32_t*>(rows + index * lanes / 2);
  const auto wide = hn::PromoteTo(d64, hn::LoadU(d32, from));
  return hn::BitCast(Floats(), hn::Or(wide, hn::ShiftLeft<32>(wide)));
}

template <int rows, bool four_bits>
HWY_NOINLINE void panel_product(const DigitTile& tile, const PanelWeights& panel, float* result) {
  const Bytes d8;
  const Words d32;
  const Floats df;
  const hn::Repartition<uint8_t, Bytes> du8;
  const hn::Repartition<uint16_t, Bytes> du16;
  const hn::Repartition<int64_t, Bytes> d64;
  constexpr int64_t block_bytes = four_bits ? 128 : 256, vector_bytes = hn::MaxLanes(d8);
  hn::Vec<Floats> sums[rows][unit_vectors];
  repeat<rows>([&](auto r) HWY_ATTR {
    repeat<unit_vectors>([&](auto v) HWY_ATTR { sums[r][v] = hn::Zero(df); });
  });
  const uint8_t* codes = panel.codes;
  const int8_t* values = tile.values;
  const float* scales = panel.scales;
  const float* own_scales = tile.scales;
  for (int64_t block = 0, group = 0; block < panel.blocks; ++group, scales += eight) {
    for (int64_t span = 0; span < panel.group_spans && block < panel.blocks; ++span) {
      const int64_t end = std::min(block + panel.span_blocks, panel.blocks);
      hn::Vec<Words> parts[rows][unit_vectors];
      repeat<rows>([&](auto r) HWY_ATTR {
        repeat<unit_vectors>([&](auto v) HWY_ATTR { parts[r][v] = hn::Zero(d32); });
      });
      for (; block < end; ++block, codes += block_bytes, values += steps * rows * eight) {
        repeat<steps>([&](auto step) HWY_ATTR {
          hn::Vec<Bytes> own[rows];
          repeat<rows>([&](auto r) HWY_ATTR {
            int64_t bits;
            __builtin_memcpy(&bits, values + (step * rows + r) * eight, sizeof(bits));
            own[r] = hn::BitCast(d8, hn::Set(d64, bits));
          });
          repeat<unit_vectors>([&](auto v) HWY_ATTR {
            hn::Vec<Bytes> weights;
            if constexpr (four_bits) {
              const auto both = hn::LoadU(du8, codes + step / 2 * 64 + v * vector_bytes);
              const auto half = hn::Set(du8, 15);
              weights = hn::BitCast(
                  d8, step % 2 == 0
                          ? hn::And(both, half)
                          : hn::And(hn::BitCast(du8, hn::ShiftRight<4>(hn::BitCast(du16, both))),
                                    half));
            } else {
              weights = hn::BitCast(d8, hn::LoadU(du8, codes + step * 64 + v * vector_bytes));
            }
            repeat<rows>([&](auto r) HWY_ATTR {
              parts[r][v] = add_products<four_bits>(parts[r][v], weights, own[r]);
            });
          });
        });
      }
      repeat<unit_vectors>([&](auto v) HWY_ATTR {
        const auto scale = each_twice(scales, v);
        repeat<rows>([&](auto r) HWY_ATTR {
          const auto own = hn::Mul(scale, hn::Set(df, own_scales[r]));
          sums[r][v] = hn::MulAdd(hn::ConvertTo(df, parts[r][v]), own, sums[r][v]);
        });
      });
      own_scales += rows;
    }
    if (panel.zeros != nullptr || panel.zero != 0) {
      repeat<unit_vectors>([&](auto v) HWY_ATTR {
        const auto zero =
            panel.zeros ? each_twice(panel.zeros + group * eight, v) : hn::Set(df, panel.zero);
        const auto shift = hn::Mul(each_twice(scales, v), zero);
        repeat<rows>([&](auto r) HWY_ATTR {  // half of it in each of a row's two lanes
          const auto half = hn::Set(df, 0.5f * tile.sums[group * rows + r]);
          sums[r][v] = hn::NegMulAdd(shift, half, sums[r][v]);
        });
      });
    }
  }
  repeat<rows>([&](auto r) HWY_ATTR {
    HWY_ALIGN float all[2 * eight];
    repeat<unit_vectors>([&](auto v) HWY_ATTR { hn::Store(sums[r][v], df, all + v * lanes); });
    for (int64_t i = 0; i < eight; ++i) result[r * eight + i] = all[2 * i] + all[2 * i + 1];
  });
}

#endif

// e4m3 as f16 of 1/256 of the value: exponent and fraction stand where f16 has them.
constexpr float f16_shift = 256.0f;

// Eight numbers in vectors of at most eight.
using Part = hn::CappedTag<float, 8>;
constexpr int part_width = int(hn::MaxLanes(Part())), part_count = int(eight) / part_width;

template <class D>
HWY_INLINE void load_e4m3(D d, const uint8_t* from, hn::Vec<D> (&to)[part_count]) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (converts_f16) {
    const hn::FixedTag<int8_t, 8> d8;
    const hn::FixedTag<int16_t, 8> d16;
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(from)));
    const auto bits = hn::And(hn::ShiftLeft<7>(wide), hn::Set(d16, int16_t(-0x4001)));
    const hn::Rebind<hwy::float16_t, D> df16;
    if constexpr (part_count == 2) {
      const hn::Half<decltype(d16)> half;
      to[0] = hn::PromoteTo(d, hn::BitCast(df16, hn::LowerHalf(half, bits)));
      to[1] = hn::PromoteTo(d, hn::BitCast(df16, hn::UpperHalf(half, bits)));
    } else {
      to[0] = hn::PromoteTo(d, hn::BitCast(df16, bits));
    }
    return;
  }
#endif
  HWY_ALIGN float values[eight];
  for (int64_t i = 0; i < eight; ++i) values[i] = e4m3_value(from[i]) / f16_shift;
  for (int v = 0; v < part_count; ++v) to[v] = hn::Load(d, values + v * part_width);
}

template <int rows>
HWY_NOINLINE void fp8_rows(const float* values, const PanelWeights& panel, float* result) {
  const Part d;
  using V = hn::Vec<Part>;
  constexpr int at_once = rows == 1 ? 8 : 4;  // weight rows, so that the sums stay in registers
  for (int64_t top = 0; top < eight; top += at_once) {
    V sums[rows][at_once];
    repeat<rows>([&](auto r) HWY_ATTR {
      repeat<at_once>([&](auto i) HWY_ATTR { sums[r][i] = hn::Zero(d); });
    });
    const uint8_t* codes = panel.codes + top * eight;
    const float* own = values;
    for (int64_t block = 0, group = 0; block < panel.blocks; ++group) {
      V parts[rows][at_once];
      repeat<rows>([&](auto r) HWY_ATTR {
        repeat<at_once>([&](auto i) HWY_ATTR { parts[r][i] = hn::Zero(d); });
      });
      const int64_t end = std::min(block + panel.span_blocks * panel.group_spans, panel.blocks);
      for (int64_t step = 0; step < (end - block) * steps; ++step) {
        V a[rows][part_count];
        repeat<rows>([&](auto r) HWY_ATTR {
          repeat<part_count>(
              [&](auto v) HWY_ATTR { a[r][v] = hn::LoadU(d, own + r * eight + v * part_width); });
        });
        repeat<at_once>([&](auto i) HWY_ATTR {
          V weights[part_count];
          load_e4m3(d, codes + i * eight, weights);
          repeat<rows>([&](auto r) HWY_ATTR {
            repeat<part_count>([&](auto v) HWY_ATTR {
              parts[r][i] = hn::MulAdd(weights[v], a[r][v], parts[r][i]);
            });
          });
        });
        codes += 64;
        own += rows * eight;
      }
      block = end;
      repeat<at_once>([&](auto i) HWY_ATTR {
        const V scale = hn::Set(d, f16_shift * panel.scales[group * eight + top + i]);
        repeat<rows>([&](auto r)
                         HWY_ATTR { sums[r][i] = hn::MulAdd(parts[r][i], scale, sums[r][i]); });
      });
    }
    repeat<rows>([&](auto r) HWY_ATTR {
      repeat<at_once>([&](auto i) HWY_ATTR {
        result[r * eight + top + i] = hn::GetLane(hn::SumOfLanes(d, sums[r][i]));
      });
    });
  }
}

// Rounds to the nearest bf16, ties to even.
HWY_INLINE void store_rounded(hn::Vec<Part> value, bf16* to) {
  const hn::RebindToUnsigned<Part> bits_tag;
  const hn::RebindToSigned<Part> signed_tag;
  const hn::Rebind<uint16_t, Part> narrow;
  const auto bits = hn::BitCast(bits_tag, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(bits_tag, 1));
  const auto up = hn::Add(bits, hn::Add(odd, hn::Set(bits_tag, 0x7fff)));
  const auto top = hn::BitCast(signed_tag, hn::ShiftRight<16>(up));
  hn::StoreU(hn::DemoteTo(narrow, top), narrow, reinterpret_cast<uint16_t*>(to));
}
HWY_INLINE void store_rounded(hn::Vec<Part> value, float* to) { hn::StoreU(value, Part(), to); }

// The panel's rows [8, padded columns], each `stride` elements apart.
template <typename T>
void widen_fp8(const PanelWeights& panel, T* out, int64_t stride) {
  const Part d;
  const int64_t group_blocks = panel.span_blocks * panel.group_spans;
  for (int64_t row = 0; row < eight; ++row) {
    const uint8_t* codes = panel.codes + row * eight;
    T* to = out + row * stride;
    for (int64_t block = 0; block < panel.blocks; ++block) {
      const auto scale = hn::Set(d, f16_shift * panel.scales[block / group_blocks * eight + row]);
      repeat<steps>([&](auto) HWY_ATTR {
        hn::Vec<Part> values[part_count];
        load_e4m3(d, codes, values);
        repeat<part_count>([&](auto v) HWY_ATTR {
          store_rounded(hn::Mul(values[v], scale), to + v * part_width);
        });
        codes += 64;
        to += eight;
      });
    }
  }
}
void widen_fp8_bf16(const PanelWeights& panel, bf16* out, int64_t stride) {
  widen_fp8(panel, out, stride);
}
void widen_fp8_f32(const PanelWeights& panel, float* out, int64_t stride) {
  widen_fp8(panel, out, stride);
}

void fp8_product(const float* values, int rows, const PanelWeights& panel, float* result) {
  rows == 1 ? fp8_rows<1>(values, panel, result) : fp8_rows<2>(values, panel, result);
}

template <int... row>
void fill(PanelKernels& kernels, std::integer_sequence<int, row...>) {
  kernels.int4 = {nullptr, panel_product<row + 1, true>...};
  kernels.int8 = {nullptr, panel_product<row + 1, false>...};
}
void all_kernels(PanelKernels& kernels) {
  fill(kernels, std::make_integer_sequence<int, tile_rows>());
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::cpu {
HWY_EXPORT(all_kernels);
HWY_EXPORT(fp8_product);
HWY_EXPORT(widen_fp8_bf16);
HWY_EXPORT(widen_fp8_f32);

const PanelKernels& portable_panel_kernels() {
  static const PanelKernels kernels = [] {
    PanelKernels made;
    HWY_DYNAMIC_DISPATCH(all_kernels)(made);
    return made;
  }();
  return kernels;
}

void fp8_panel(const float* values, int rows, const PanelWeights& panel, float* result) {
  HWY_DYNAMIC_DISPATCH(fp8_product)(values, rows, panel, result);
}

void widen_fp8_panel(const PanelWeights& panel, bf16* out, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(widen_fp8_bf16)(panel, out, stride);
}
void widen_fp8_panel(const PanelWeights& panel, float* out, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(widen_fp8_f32)(panel, out, stride);
}
}  // namespace kinora::cpu
#endif
