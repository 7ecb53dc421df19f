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
constexpr int64_t fp8_rows = 4;              // up to here fp8 is widened in registers
constexpr int64_t widened_bytes = 1 << 20;   // of weights widened at once, for each thread
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

// One block of a row: its digits, each `stride` rows of a tile apart. Returns the scale of the
// first; a block with a NaN or an infinity gets NaN for a scale.
float write_digits(const float* from, int digits, int rows, int8_t* to) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < block; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(from[i]) & 0x7fffffffu);
  }
  const float bound = std::bit_cast<float>(largest);
  float left[block];
  float scale = bound / digit, inverse = digit / bound;
  const bool finite = largest < 0x7f800000u;
  if (!finite || !(inverse < std::numeric_limits<float>::infinity())) scale = inverse = 0;
  for (int64_t i = 0; i < block; ++i) left[i] = finite ? from[i] * inverse : 0.0f;
  for (int d = 0; d < digits; ++d) {
    for (int64_t i = 0; i < block; ++i) {
      const float whole = rounded(left[i]);
      to[i / 8 * rows * 8 + d * 8 + i % 8] = static_cast<int8_t>(static_cast<int32_t>(whole));
      left[i] = (left[i] - whole) * next_digit;
    }
  }
  return finite ? scale : std::numeric_limits<float>::quiet_NaN();
}

// A tile of the rows from `first` on, in the layout of DigitTile.
struct TileSpace {
  int64_t k, blocks, groups, group_blocks;
  Tiling tiling;

  size_t values() const { return static_cast<size_t>(blocks * block * tiling.rows); }
  size_t scales() const { return static_cast<size_t>(blocks * tiling.rows); }
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
    for (int64_t b = 0; b < space.blocks; ++b) {
      float part[block] = {};
      const int64_t columns = std::min(block, space.k - b * block);
      std::memcpy(part, from + b * block, static_cast<size_t>(columns) * sizeof(float));
      int8_t* to = values + b * block * rows + at_row * 8;
      float scale = write_digits(part, digits, rows, to);
      for (int d = 0; d < digits; ++d, scale /= next_digit) {
        int32_t sum = 0;
        for (int64_t j = 0; j < block; ++j) sum += to[j / 8 * rows * 8 + d * 8 + j % 8];
        scales[b * rows + at_row + d] = scale;
        sums[b / space.group_blocks * rows + at_row + d] += static_cast<float>(sum) * scale;
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

PanelWeights panel_of(const PackedMatrix& matrix, int64_t index) {
  return {matrix.panel(index),
          matrix.scales(index),
          matrix.zeros(index),
          matrix.zero(),
          matrix.padded_columns() / block,
          matrix.group() / block};
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
  const TileSpace space{work.k, first_matrix.padded_columns() / block, first_matrix.groups(),
                        first_matrix.group() / block, tiling};
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
    for_panels(context, products, count == 1,
               [&](const PackedWork& product, int64_t begin, int64_t end) {
                 const PackedMatrix& matrix = *product.matrix;
                 const PanelKernel kernel =
                     (matrix.kind() == PackedKind::int4 ? kernels.int4
                                                        : kernels.int8)[size_t(tiling.rows)];
                 const int64_t strip = std::max<int64_t>(1, strip_bytes / matrix.panel_bytes());
                 for (int64_t column = begin; column < end; column += strip) {
                   for (int64_t tile = 0; tile < count; ++tile) {
                     const DigitTile digits_of =
                         space.view(tiles + static_cast<size_t>(tile) * space.bytes());
                     const int64_t row = tile * tiling.own;
                     for (int64_t panel = column; panel < std::min(end, column + strip); ++panel) {
                       alignas(64) float result[most_tile_rows * panel_rows];
                       kernel(digits_of, panel_of(matrix, panel), result);
                       write_result(product, top + row, std::min(tiling.own, rows - row), panel,
                                    result, digits);
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

// Strips of weights become plain ones, which the plain product reads from cache.
void widened(const Context& context, const PackedWork& product, bool native_bf16) {
  const PackedMatrix& matrix = *product.matrix;
  const bool narrow = native_bf16 && bf16_instructions();
  const DType type = narrow ? DType::bf16 : DType::f32;
  const int64_t row_bytes = std::max<int64_t>(1, matrix.columns()) * dtype_size(type);
  const int64_t strip =
      round_up(std::max<int64_t>(96, context.threads->threads() * widened_bytes / row_bytes), 96);
  const ScratchLease lease(static_cast<size_t>(std::min(strip, matrix.rows()) * row_bytes));
  for (int64_t first = 0; first < matrix.rows(); first += strip) {
    const int64_t count = std::min(strip, matrix.rows() - first);
    TensorView rows(lease.as<std::byte>(), type, Shape{count, matrix.columns()});
    context.threads->parallel_for(
        count, divide_up(count, context.threads->threads()), [&](int64_t begin, int64_t end) {
          matrix.widen(first + begin, end - begin, rows.rows(begin, end - begin));
        });
    MatmulWork part = product.work;
    part.n = count;
    part.weight = rows.raw();
    part.weight_type = type;
    part.weight_stride = matrix.columns();
    part.out += first;
    if (part.bias) part.bias += first;
    narrow ? matmul_bf16(context, part) : matmul_blocked(context, part);
  }
}

bool alike(const PackedMatrix& a, const PackedMatrix& b) {
  return (a.kind() == PackedKind::fp8) == (b.kind() == PackedKind::fp8) && a.group() == b.group() &&
         a.columns() == b.columns();
}

}  // namespace

void packed_matmul(const Context& context, std::span<const PackedWork> products, bool eight_bits,
                   const PanelKernels* kernels) {
  for (size_t begin = 0; begin < products.size();) {
    size_t end = begin + 1;
    while (end < products.size() && alike(*products[begin].matrix, *products[end].matrix)) ++end;
    const std::span<const PackedWork> same = products.subspan(begin, end - begin);
    begin = end;
    if (same[0].matrix->kind() != PackedKind::fp8) {
      whole_numbers(context, same, eight_bits ? 1 : 3, kernels ? *kernels : best_kernels());
    } else if (same[0].work.m <= fp8_rows) {
      few_rows_of_fp8(context, same);
    } else {
      for (const PackedWork& product : same) widened(context, product, eight_bits);
    }
  }
}

}  // namespace kinora::cpu
