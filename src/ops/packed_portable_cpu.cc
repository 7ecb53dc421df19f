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
        const int64_t group = block / panel.group_blocks;
        const uint8_t* codes = panel.codes + block * block_bytes + row * eight;
        int32_t part = 0;
        for (int64_t i = 0; i < steps * eight; ++i) {
          const int64_t step = i / eight;
          const int code = four_bits ? codes[step / 2 * 64 + i % eight] >> (step % 2 * 4) & 15
                                     : static_cast<int8_t>(codes[step * 64 + i % eight]);
          part += code * tile.values[((block * steps + step) * rows + r) * eight + i % eight];
        }
        const float scale = panel.scales[group * eight + row];
        sum += static_cast<float>(part) * (scale * tile.scales[block * rows + r]);
        if (block % panel.group_blocks == 0) {
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
  for (int64_t block = 0, group = 0; block < panel.blocks; ++group, scales += eight) {
    const int64_t end = std::min(block + panel.group_blocks, panel.blocks);
    for (; block < end; ++block, codes += block_bytes, values += steps * rows * eight) {
      hn::Vec<Words> parts[rows][unit_vectors];
      repeat<rows>([&](auto r) HWY_ATTR {
        repeat<unit_vectors>([&](auto v) HWY_ATTR { parts[r][v] = hn::Zero(d32); });
      });
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
                d8,
                step % 2 == 0
                    ? hn::And(both, half)
                    : hn::And(hn::BitCast(du8, hn::ShiftRight<4>(hn::BitCast(du16, both))), half));
          } else {
            weights = hn::BitCast(d8, hn::LoadU(du8, codes + step * 64 + v * vector_bytes));
          }
          repeat<rows>([&](auto r) HWY_ATTR {
            parts[r][v] = add_products<four_bits>(parts[r][v], weights, own[r]);
          });
        });
      });
      repeat<unit_vectors>([&](auto v) HWY_ATTR {
        const auto scale = each_twice(scales, v);
        repeat<rows>([&](auto r) HWY_ATTR {
          const auto own = hn::Mul(scale, hn::Set(df, tile.scales[block * rows + r]));
          sums[r][v] = hn::MulAdd(hn::ConvertTo(df, parts[r][v]), own, sums[r][v]);
        });
      });
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

template <class D>
HWY_INLINE hn::Vec<D> load_e4m3(D d, const uint8_t* from) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (converts_f16) {
    const hn::Rebind<int8_t, D> d8;
    const hn::Rebind<int16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(from)));
    const auto bits = hn::And(hn::ShiftLeft<7>(wide), hn::Set(d16, int16_t(0xbfff)));
    return hn::PromoteTo(d, hn::BitCast(df16, bits));
  }
#endif
  HWY_ALIGN float values[hn::MaxLanes(D())];
  for (size_t i = 0; i < hn::MaxLanes(D()); ++i) values[i] = e4m3_value(from[i]) / f16_shift;
  return hn::Load(d, values);
}

template <int rows>
HWY_NOINLINE void fp8_rows(const float* values, const PanelWeights& panel, float* result) {
  const hn::CappedTag<float, 8> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int width = int(hn::MaxLanes(d)), vectors = int(eight) / width;
  // Four weight rows at a time, so that the sums stay in registers.
  for (int64_t top = 0; top < eight; top += 4) {
    V sums[rows][4];
    repeat<rows>([&](auto r)
                     HWY_ATTR { repeat<4>([&](auto i) HWY_ATTR { sums[r][i] = hn::Zero(d); }); });
    const uint8_t* codes = panel.codes + top * eight;
    const float* own = values;
    for (int64_t block = 0, group = 0; block < panel.blocks; ++group) {
      V parts[rows][4];
      repeat<rows>(
          [&](auto r) HWY_ATTR { repeat<4>([&](auto i) HWY_ATTR { parts[r][i] = hn::Zero(d); }); });
      const int64_t end = std::min(block + panel.group_blocks, panel.blocks);
      for (int64_t step = 0; step < (end - block) * steps; ++step) {
        repeat<vectors>([&](auto v) HWY_ATTR {
          V a[rows];
          repeat<rows>([&](auto r) HWY_ATTR { a[r] = hn::LoadU(d, own + r * eight + v * width); });
          repeat<4>([&](auto i) HWY_ATTR {
            const V weight = load_e4m3(d, codes + i * eight + v * width);
            repeat<rows>([&](auto r)
                             HWY_ATTR { parts[r][i] = hn::MulAdd(weight, a[r], parts[r][i]); });
          });
        });
        codes += 64;
        own += rows * eight;
      }
      block = end;
      repeat<4>([&](auto i) HWY_ATTR {
        const V scale = hn::Set(d, f16_shift * panel.scales[group * eight + top + i]);
        repeat<rows>([&](auto r)
                         HWY_ATTR { sums[r][i] = hn::MulAdd(parts[r][i], scale, sums[r][i]); });
      });
    }
    repeat<rows>([&](auto r) HWY_ATTR {
      repeat<4>([&](auto i) HWY_ATTR {
        result[r * eight + top + i] = hn::GetLane(hn::SumOfLanes(d, sums[r][i]));
      });
    });
  }
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
}  // namespace kinora::cpu
#endif
