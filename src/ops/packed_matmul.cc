#include "ops/packed_matmul.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/matmul_blocks.h"
#include "ops/scratch.h"

namespace kinora::cpu {
namespace {

constexpr int64_t block = PackedMatrix::block;
constexpr int64_t panel_rows = PackedMatrix::panel_rows;
constexpr int64_t row_chunk = 512;           // rows that are written in digits at once
constexpr int64_t strip_bytes = 256 * 1024;  // of weights that stay in cache while rows pass
constexpr int64_t fp8_rows = 8;              // up to here fp8 can be widened in registers
constexpr int64_t exact_fp8_rows = 4;        // and to here where rows count as f32
constexpr int64_t plain_few_rows = 20;       // up to here widened ones go to matmul_rows
constexpr int64_t amx_rows = 21;             // from here AMX is faster; few rows are as one is
// Of weights widened at once, for each thread: rows are packed anew for every such strip.
constexpr int64_t widened_bytes = 1 << 22;
constexpr float digit = 127, next_digit = 254;

const PanelKernels& best_kernels() {
  if (const PanelKernels* kernels = arm_matrix_kernels()) return *kernels;
  if (const PanelKernels* kernels = arm_dot_kernels()) return *kernels;
  if (const PanelKernels* kernels = vnni_panel_kernels()) return *kernels;
  return portable_panel_kernels();
}

// Tiles of `own` rows of activations, `digits` rows of a kernel each; the last tile may be padded.
struct Tiling {
  int digits = 1;
  int64_t own = 1;
  int rows = 1;  // of a kernel's tile: at least own × digits
};

Tiling tiling_for(const PanelKernels& kernels, int64_t m, int digits) {
  Tiling tiling{digits, 1, digits};
  for (int rows = digits; rows <= most_tile_rows; ++rows) {
    if (kernels.int4[static_cast<size_t>(rows)] == nullptr) continue;
    if (rows == digits || rows / digits > tiling.own) tiling = {digits, rows / digits, rows};
    if (tiling.own >= m) break;
  }
  return tiling;
}

// Rounds to a whole number, ties to even, for |x| < 2^22.
inline float rounded(float x) {
  constexpr float magic = 12582912.0f;
  return (x + magic) - magic;
}

// The largest magnitude of some blocks, as bits.
uint32_t largest_of(const float* from, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(from[i]) & 0x7fffffffu);
  }
  return largest;
}

// One block of a row times `inverse` in digits, each in its own row of a tile; adds what each holds
// to sums.
void write_digits(const float* from, float inverse, int digits, int rows, int8_t* to,
                  int32_t* sums) {
  float left[block];
  for (int64_t i = 0; i < block; ++i) left[i] = from[i] * inverse;
  for (int d = 0; d < digits; ++d) {
    int8_t whole[block];
    int32_t sum = 0;
    for (int64_t i = 0; i < block; ++i) {
      const float number = rounded(left[i]);
      const auto as_int = static_cast<int32_t>(number);
      whole[i] = static_cast<int8_t>(as_int);
      sum += as_int;
      left[i] = (left[i] - number) * next_digit;
    }
    for (int64_t i = 0; i < block; i += 8) {
      std::memcpy(to + (i / 8 * rows + d) * 8, whole + i, 8);
    }
    sums[d] += sum;
  }
}

// A tile of the rows from `first` on, in the layout of DigitTile.
struct TileSpace {
  int64_t k, blocks, groups, span_blocks, group_spans;
  Tiling tiling;

  size_t values() const { return static_cast<size_t>(blocks * block * tiling.rows); }
  int64_t spans() const { return divide_up(blocks, span_blocks); }
  size_t scales() const { return static_cast<size_t>(spans() * tiling.rows); }
  size_t sums() const { return static_cast<size_t>(groups * tiling.rows); }
  size_t bytes() const {
    const size_t used = values() + (scales() + sums()) * sizeof(float);
    return (used + 63) / 64 * 64;
  }
  DigitTile view(const std::byte* at) const {
    DigitTile tile;
    tile.values = reinterpret_cast<const int8_t*>(at);
    tile.scales = reinterpret_cast<const float*>(at + values());
    tile.sums = tile.scales + scales();
    return tile;
  }
};

void write_tile(const TileSpace& space, const MatmulWork& work, int64_t first, int64_t count,
                std::byte* at) {
  const int rows = space.tiling.rows, digits = space.tiling.digits;
  auto* values = reinterpret_cast<int8_t*>(at);
  auto* scales = reinterpret_cast<float*>(at + space.values());
  float* sums = scales + space.scales();
  if (count * digits < rows) std::memset(at, 0, space.bytes());
  std::fill_n(sums, space.sums(), 0.0f);
  for (int64_t i = 0; i < count; ++i) {
    const float* from = work.a + (first + i) * work.a_stride;
    const int at_row = static_cast<int>(i) * digits;
    for (int64_t span = 0; span < space.spans(); ++span) {
      const int64_t begin = span * space.span_blocks;
      const int64_t end = std::min(space.blocks, begin + space.span_blocks);
      const int64_t columns = std::min(end * block, space.k) - begin * block;
      const uint32_t bits = largest_of(from + begin * block, columns);
      const bool finite = bits < 0x7f800000u;
      const float largest = std::bit_cast<float>(bits);
      float scale = largest / digit, inverse = digit / largest;
      if (!(inverse < std::numeric_limits<float>::infinity())) scale = inverse = 0;  // nearly 0
      if (!finite) scale = std::numeric_limits<float>::quiet_NaN();
      int32_t totals[most_tile_rows] = {};
      for (int64_t b = begin; b < end; ++b) {
        float part[block] = {};
        const int64_t count_here = std::min(block, space.k - b * block);
        if (finite && count_here > 0) {
          std::memcpy(part, from + b * block, static_cast<size_t>(count_here) * sizeof(float));
        }
        write_digits(part, finite ? inverse : 0, digits, rows,
                     values + b * block * rows + at_row * 8, totals);
      }
      for (int d = 0; d < digits; ++d, scale /= next_digit) {
        scales[span * rows + at_row + d] = scale;
        sums[span / space.group_spans * rows + at_row + d] += static_cast<float>(totals[d]) * scale;
      }
    }
  }
}

// Writes the product of `count` rows from `first` with one panel.
void write_result(const PackedWork& product, int64_t first, int64_t count, int64_t panel,
                  const float* result, int digits) {
  const MatmulWork& work = product.work;
  const int64_t column = panel * panel_rows, columns = std::min(panel_rows, work.n - column);
  for (int64_t i = 0; i < count; ++i) {
    float* out = work.out + (first + i) * work.out_stride + column;
    for (int64_t c = 0; c < columns; ++c) {
      float value = 0;
      for (int d = digits - 1; d >= 0; --d) value += result[(i * digits + d) * panel_rows + c];
      if (work.bias) value += work.bias[column + c];
      out[c] = work.accumulate ? out[c] + value : value;
    }
  }
}

// Blocks of a span: four where groups allow.
int64_t span_blocks_of(const PackedMatrix& matrix) {
  const int64_t group = matrix.group() / block, wide = 4;
  return group % wide == 0 || matrix.groups() == 1 ? wide : 1;
}

PanelWeights panel_of(const PackedMatrix& matrix, int64_t index) {
  const int64_t span = span_blocks_of(matrix);
  return {matrix.panel(index),
          matrix.scales(index),
          matrix.zeros(index),
          matrix.zero(),
          matrix.padded_columns() / block,
          span,
          divide_up(matrix.group() / block, span),
          matrix.panel_bytes(),
          matrix.groups() * panel_rows};
}

// Calls body(product, first panel, last panel) over all panels, in parallel.
template <class Body>
void for_panels(const Context& context, std::span<const PackedWork> products, bool few_rows,
                const Body& body) {
  int64_t panels = 0, bytes = 0;
  for (const PackedWork& product : products) {
    panels += product.matrix->panels();
    bytes += product.matrix->panels() * product.matrix->panel_bytes();
  }
  // With few rows one piece for each thread, since every new place in memory is read slowly at
  // first; with many, pieces that keep all threads busy to the end.
  const int64_t share = divide_up(panels, context.threads->threads() * (few_rows ? 1 : 8));
  const int64_t least = divide_up(16 * 1024 * panels, std::max<int64_t>(1, bytes));
  context.threads->parallel_for(panels, std::max(share, least), [&](int64_t begin, int64_t end) {
    for (const PackedWork& product : products) {
      const int64_t own = product.matrix->panels();
      if (begin < own && end > 0) {
        body(product, std::max<int64_t>(begin, 0), std::min(end, own));
      }
      begin -= own;
      end -= own;
    }
  });
}

// All products have the same rows and the same groups.
void whole_numbers(const Context& context, std::span<const PackedWork> products, int digits,
                   const PanelKernels& kernels) {
  const MatmulWork& work = products[0].work;
  const PackedMatrix& first_matrix = *products[0].matrix;
  const Tiling tiling = tiling_for(kernels, work.m, digits);
  const int64_t span = span_blocks_of(first_matrix);
  const TileSpace space{
      work.k, first_matrix.padded_columns() / block,         first_matrix.groups(),
      span,   divide_up(first_matrix.group() / block, span), tiling};
  const int64_t chunk_tiles = divide_up(std::min(work.m, row_chunk), tiling.own);
  const ScratchLease lease(static_cast<size_t>(chunk_tiles) * space.bytes());
  std::byte* tiles = lease.as<std::byte>();
  for (int64_t top = 0; top < work.m; top += chunk_tiles * tiling.own) {
    const int64_t rows = std::min(chunk_tiles * tiling.own, work.m - top);
    const int64_t count = divide_up(rows, tiling.own);
    context.threads->parallel_for(count, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, work.k)),
                                  [&](int64_t begin, int64_t end) {
                                    for (int64_t tile = begin; tile < end; ++tile) {
                                      const int64_t row = tile * tiling.own;
                                      write_tile(space, work, top + row,
                                                 std::min(tiling.own, rows - row),
                                                 tiles + static_cast<size_t>(tile) * space.bytes());
                                    }
                                  });
    for_panels(
        context, products, count == 1, [&](const PackedWork& product, int64_t begin, int64_t end) {
          const PackedMatrix& matrix = *product.matrix;
          const bool four_bits = matrix.kind() == PackedKind::int4;
          const auto rows_at = static_cast<size_t>(tiling.rows);
          const PanelKernel one = (four_bits ? kernels.int4 : kernels.int8)[rows_at];
          const PanelKernel several =
              (four_bits ? kernels.several_int4 : kernels.several_int8)[rows_at];
          const int64_t strip = std::max<int64_t>(1, strip_bytes / matrix.panel_bytes());
          for (int64_t column = begin; column < end; column += strip) {
            for (int64_t tile = 0; tile < count; ++tile) {
              const DigitTile digits_of =
                  space.view(tiles + static_cast<size_t>(tile) * space.bytes());
              const int64_t row = tile * tiling.own, last = std::min(end, column + strip);
              for (int64_t panel = column; panel < last;) {
                const bool more = several && last - panel >= PanelKernels::several;
                const int64_t taken = more ? PanelKernels::several : 1;
                alignas(64) float result[PanelKernels::several * most_tile_rows * panel_rows];
                (more ? several : one)(digits_of, panel_of(matrix, panel), result);
                for (int64_t i = 0; i < taken; ++i, ++panel) {
                  write_result(product, top + row, std::min(tiling.own, rows - row), panel,
                               result + i * tiling.rows * panel_rows, digits);
                }
              }
            }
          }
        });
  }
}

// A few rows of f32 against e4m3 widened in registers.
void few_rows_of_fp8(const Context& context, std::span<const PackedWork> products) {
  const MatmulWork& work = products[0].work;
  const int64_t padded = products[0].matrix->padded_columns();
  const ScratchLease lease(static_cast<size_t>(work.m * padded) * sizeof(float));
  auto* values = lease.as<float>();  // pairs of rows: [padded / 8][rows of the pair][8]
  std::fill_n(values, work.m * padded, 0.0f);
  for (int64_t top = 0; top < work.m; top += 2) {
    const int64_t rows = std::min<int64_t>(2, work.m - top);
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = work.a + (top + r) * work.a_stride;
      float* to = values + top * padded + r * 8;
      for (int64_t j = 0; j < work.k; ++j) to[j / 8 * rows * 8 + j % 8] = from[j];
    }
  }
  for_panels(context, products, true, [&](const PackedWork& product, int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      for (int64_t top = 0; top < work.m; top += 2) {
        const int64_t rows = std::min<int64_t>(2, work.m - top);
        alignas(64) float result[2 * panel_rows];
        fp8_panel(values + top * padded, static_cast<int>(rows), panel_of(*product.matrix, panel),
                  result);
        write_result(product, top, rows, panel, result, 1);
      }
    }
  });
}

// The same where the CPU multiplies f16: a row is one row of f16, or two that are as exact as f32
// needs, both for a largest value of 1024.
void few_f16_rows_of_fp8(const Context& context, std::span<const PackedWork> products, int parts) {
  const MatmulWork& work = products[0].work;
  const int64_t padded = products[0].matrix->padded_columns();
  const int64_t own = most_f16_rows / parts, tiles = divide_up(work.m, own);
  const ScratchLease lease(static_cast<size_t>(work.m * parts * padded) * sizeof(uint16_t));
  auto* values = lease.as<uint16_t>();  // tiles of [padded / 8][rows of the tile][8]
  float scales[fp8_rows];
  std::fill_n(values, work.m * parts * padded, uint16_t{0});
  for (int64_t row = 0; row < work.m; ++row) {
    const float* from = work.a + row * work.a_stride;
    const uint32_t bits = largest_of(from, work.k);
    const bool finite = bits < 0x7f800000u;
    const float inverse = 1024.0f / std::bit_cast<float>(bits);
    const bool some = finite && inverse < std::numeric_limits<float>::infinity();
    scales[row] =
        finite ? std::bit_cast<float>(bits) / 1024.0f : std::numeric_limits<float>::quiet_NaN();
    if (!some) continue;
    const int64_t tile = row / own, rows = std::min(own, work.m - tile * own) * parts;
    uint16_t* to = values + tile * own * parts * padded + row % own * parts * 8;
    for (int64_t j = 0; j < work.k; ++j) {
      float left = from[j] * inverse;
      for (int part = 0; part < parts; ++part) {
        const f16 digit_of = f16::from_float(left);
        to[j / 8 * rows * 8 + part * 8 + j % 8] = digit_of.bits;
        left = (left - digit_of.to_float()) * 2048.0f;
      }
    }
  }
  for_panels(context, products, true, [&](const PackedWork& product, int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t count = std::min(own, work.m - tile * own);
        alignas(64) float result[most_f16_rows * panel_rows];
        fp8_f16_panel(values + tile * own * parts * padded, static_cast<int>(count * parts),
                      panel_of(*product.matrix, panel), result);
        for (int64_t i = 0; i < count * parts; ++i) {
          const float scale = scales[tile * own + i / parts] / (i % parts == 0 ? 1.0f : 2048.0f);
          for (int64_t c = 0; c < panel_rows; ++c) result[i * panel_rows + c] *= scale;
        }
        write_result(product, tile * own, count, panel, result, parts);
      }
    }
  });
}

// Strips of fp8 weights become plain ones, which the plain products read from cache.
template <typename T>
void widened_fp8(const Context& context, const PackedWork& product) {
  const PackedMatrix& matrix = *product.matrix;
  const int64_t threads = context.threads->threads(), stride = matrix.padded_columns();
  const int64_t panel_bytes = panel_rows * stride * static_cast<int64_t>(sizeof(T));
  const int64_t strip = threads * std::max<int64_t>(12, widened_bytes / panel_bytes);
  const ScratchLease lease(static_cast<size_t>(std::min(strip, matrix.panels()) * panel_bytes));
  T* rows = lease.as<T>();
  for (int64_t first = 0; first < matrix.panels(); first += strip) {
    const int64_t count = std::min(strip, matrix.panels() - first);
    context.threads->parallel_for(
        count, divide_up(count, threads), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            widen_fp8_panel(panel_of(matrix, first + i), rows + i * panel_rows * stride, stride);
          }
        });
    const int64_t column = first * panel_rows;
    MatmulWork part = product.work;
    part.n = std::min(count * panel_rows, matrix.rows() - column);
    part.weight = rows;
    part.weight_type = dtype_of<T>::value;
    part.weight_stride = stride;
    part.out += column;
    if (part.bias) part.bias += column;
    if (part.m <= plain_few_rows) {
      matmul_rows(context, {&part, 1});
    } else if constexpr (std::is_same_v<T, bf16>) {
      matmul_bf16(context, part);
    } else {
      matmul_blocked(context, part);
    }
  }
}

bool alike(const PackedMatrix& a, const PackedMatrix& b) {
  return (a.kind() == PackedKind::fp8) == (b.kind() == PackedKind::fp8) && a.group() == b.group() &&
         a.columns() == b.columns();
}

bool tiles_pay(const MatmulWork& work, bool eight_bits) {
  return work.m >= amx_rows && work.k > 0 &&
         (eight_bits ? packed_amx_int8_available() : packed_amx_available());
}

}  // namespace

void packed_matmul(const Context& context, std::span<const PackedWork> products, bool eight_bits,
                   const PanelKernels* kernels) {
  for (size_t begin = 0; begin < products.size();) {
    size_t end = begin + 1;
    while (end < products.size() && alike(*products[begin].matrix, *products[end].matrix)) ++end;
    const std::span<const PackedWork> same = products.subspan(begin, end - begin);
    begin = end;
    const MatmulWork& work = same[0].work;
    const bool whole = same[0].matrix->kind() != PackedKind::fp8;
    if (whole && kernels == nullptr && tiles_pay(work, eight_bits)) {
      for (const PackedWork& product : same) {
        (eight_bits ? packed_amx_int8 : packed_amx)(context, product);
      }
    } else if (whole) {
      whole_numbers(context, same, eight_bits ? 1 : 3, kernels ? *kernels : best_kernels());
    } else if (work.m <= (eight_bits ? fp8_rows : exact_fp8_rows)) {
      const bool f16_rows = kernels == nullptr && fp8_f16_instructions();
      f16_rows ? few_f16_rows_of_fp8(context, same, eight_bits ? 1 : 2)
               : few_rows_of_fp8(context, same);
    } else {
      const bool narrow = eight_bits && bf16_instructions();
      for (const PackedWork& product : same) {
        narrow ? widened_fp8<bf16>(context, product) : widened_fp8<float>(context, product);
      }
    }
  }
}

}  // namespace kinora::cpu
