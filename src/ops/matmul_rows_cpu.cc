#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "ops/matmul_blocks.h"
#include "ops/matmul_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/matmul_rows_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/vector-inl.h"

// Every weight row is read once for up to eight rows of `a`, which stay in cache. The sums of a
// rows × columns tile stand in registers, one vector a dot product, and are reduced at the end.
// What limits it is how many lines of memory are under way, so weights are asked for in the order
// in which they lie, long before their turn, as if somebody only read them (far_bytes).

HWY_BEFORE_NAMESPACE();
namespace kinora::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace kinora::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using Vector = hn::Vec<Tag>;
constexpr int64_t lanes = hn::MaxLanes(Tag());
constexpr int most_rows = 8;

// How many weight rows a tile takes, and in how many parts each sum is kept to hide the latency of
// adding.
struct TileShape {
  int columns, parts;
};
constexpr bool many_registers = HWY_TARGET == HWY_NEON || HWY_TARGET <= HWY_AVX3;
// Measured: more sums at once hide latency and share what is loaded, until registers run out.
constexpr TileShape tile_for(int rows) {
  if (rows == 1) return {2, 4};
  if (many_registers) {
    constexpr TileShape shapes[] = {{4, 2}, {2, 2}, {3, 2}, {4, 1}, {2, 2}, {3, 1}, {3, 1}};
    return shapes[rows - 2];
  }
  return {rows <= 5 ? 2 : 1, rows == 2 ? 2 : 1};
}
constexpr int most_columns = 4;
// How far ahead weights are fetched into the second-level cache: at least this, and a whole tile.
// Nearer comes too late where rows are long, since a tile then reads two places that lie far apart.
constexpr int64_t far_bytes = 16 * 1024;
// Rows up to here are too short for the hardware to notice a stream: the next tile is also fetched
// into the first-level cache. Where rows are longer, that costs more than it gives.
constexpr int64_t short_row_bytes = 4096;
constexpr int64_t line_bytes = 64;
constexpr int64_t column_unit = 12;  // tasks start at multiples of this: no tile is cut

// What is fetched while a tile is computed.
struct Fetch {
  const char* far = nullptr;  // line after line from here, as many as the tile has
  int64_t near = 0;           // this many elements further on
};

// result: [rows][columns]
template <typename T, int rows, int columns, int parts, bool short_rows>
HWY_NOINLINE void dot_tile(const float* HWY_RESTRICT a, int64_t a_stride,
                           const T* HWY_RESTRICT weight, int64_t weight_stride, int64_t k,
                           Fetch fetch, float* HWY_RESTRICT result) {
  const Tag d;
  Vector sums[rows][columns][parts];
  repeat<rows>([&](auto r) HWY_ATTR {
    repeat<columns>([&](auto c) HWY_ATTR {
      repeat<parts>([&](auto p) HWY_ATTR { sums[r][c][p] = hn::Zero(d); });
    });
  });
  // A sum takes its next product only after all others have taken theirs.
  const auto add = [&](int64_t j, const Vector* w, auto part) HWY_ATTR
      __attribute__((always_inline)) {
    repeat<rows>([&](auto r) HWY_ATTR __attribute__((always_inline)) {
      const Vector value = hn::LoadU(d, a + r * a_stride + j);
      repeat<columns>([&](auto c) HWY_ATTR __attribute__((always_inline)) {
        Vector& sum = sums[r][c][part % parts];
        sum = hn::MulAdd(w[c], value, sum);
      });
    });
  };
  const auto two_vectors = [&](int64_t j, auto part) HWY_ATTR __attribute__((always_inline)) {
    Vector w0[columns], w1[columns];
    repeat<columns>([&](auto c) HWY_ATTR __attribute__((always_inline)) {
      load_f32_pair(d, weight + c * weight_stride + j, w0[c], w1[c]);
    });
    add(j, w0, part);
    add(j + lanes, w1, std::integral_constant<int, part + 1>());
  };
  constexpr int step_vectors = std::max({2, int(line_bytes) / int(sizeof(T)) / int(lanes), parts});
  constexpr int64_t step = step_vectors * lanes;
  constexpr int step_lines = std::max(1, int(step * int64_t(sizeof(T)) / line_bytes));
  int64_t j = 0;
  for (; j + step <= k; j += step) {
    // A plain loop: GCC 12 takes a function that only fetches for one that does nothing.
    for (int64_t i = 0; i < columns * step_lines; ++i) {
      __builtin_prefetch(fetch.far + i * line_bytes, 0, 2);  // 2: the second-level cache
      if constexpr (short_rows) {
        const int64_t c = i / step_lines, at = i % step_lines * (line_bytes / int64_t(sizeof(T)));
        __builtin_prefetch(weight + c * weight_stride + j + at + fetch.near);
      }
    }
    fetch.far += columns * step_lines * line_bytes;
    repeat<step_vectors / 2>([&](auto v) HWY_ATTR __attribute__((always_inline)) {
      two_vectors(j + v * 2 * lanes, std::integral_constant<int, 2 * v>());
    });
  }
  for (; j + 2 * lanes <= k; j += 2 * lanes) two_vectors(j, std::integral_constant<int, 0>());
  for (; j < k; j += lanes) {
    const int64_t count = std::min(lanes, k - j);
    repeat<columns>([&](auto c) HWY_ATTR {
      const Vector w = load_f32_part(d, weight + c * weight_stride + j, count);
      repeat<rows>([&](auto r) HWY_ATTR {
        const Vector value = load_f32_part(d, a + r * a_stride + j, count);
        sums[r][c][0] = hn::MulAdd(w, value, sums[r][c][0]);
      });
    });
  }
  const auto whole_sum = [&](auto i) HWY_ATTR {
    Vector sum = sums[i / columns][i % columns][0];
    repeat<parts - 1>([&](auto p)
                          HWY_ATTR { sum = hn::Add(sum, sums[i / columns][i % columns][p + 1]); });
    return sum;
  };
  store_sums_of_lanes<rows * columns>(d, whole_sum, result);
}

// Columns [begin, end) of out for `rows` rows from `first_row`.
template <typename T, int rows, bool short_rows>
void dot_columns(const MatmulWork& work, int64_t first_row, int64_t begin, int64_t end) {
  constexpr TileShape shape = tile_for(rows);
  constexpr int columns = shape.columns;
  const int64_t tile_bytes = columns * work.weight_stride * int64_t(sizeof(T));
  const char* const matrix_end =
      static_cast<const char*>(work.weight) + work.n * work.weight_stride * int64_t(sizeof(T));
  const float* a = work.a + first_row * work.a_stride;
  for (int64_t column = begin; column < end; column += columns) {
    const T* weight = static_cast<const T*>(work.weight) + column * work.weight_stride;
    const int64_t count = std::min<int64_t>(columns, end - column);
    HWY_ALIGN float result[most_rows * most_columns];
    if (count == columns) {
      // Never past the matrix: its last lines are then asked for twice.
      const char* here = reinterpret_cast<const char*>(weight);
      const bool more = column + 2 * columns <= work.n;
      const Fetch fetch{std::min(here + std::max(far_bytes, tile_bytes), matrix_end - tile_bytes),
                        more ? columns * work.weight_stride : 0};
      dot_tile<T, rows, columns, shape.parts, short_rows>(
          a, work.a_stride, weight, work.weight_stride, work.k, fetch, result);
    } else {
      for (int64_t c = 0; c < count; ++c, weight += work.weight_stride) {
        float single[most_rows];
        dot_tile<T, rows, 1, shape.parts, false>(a, work.a_stride, weight, work.weight_stride,
                                                 work.k, {reinterpret_cast<const char*>(weight), 0},
                                                 single);
        for (int r = 0; r < rows; ++r) result[r * columns + c] = single[r];
      }
    }
    for (int r = 0; r < rows; ++r) {
      float* out = work.out + (first_row + r) * work.out_stride + column;
      const auto finish = [&](int64_t c) HWY_ATTR {
        float value = result[r * columns + c];
        if (work.bias) value += work.bias[column + c];
        out[c] = work.accumulate ? out[c] + value : value;
      };
      // Of a whole tile without a loop, which GCC takes for a call of memcpy.
      if (count == columns) {
        repeat<columns>([&](auto c) HWY_ATTR { finish(c); });
      } else {
        for (int64_t c = 0; c < count; ++c) finish(c);
      }
    }
  }
}

template <typename T, size_t... row>
void dot_rows(const MatmulWork& work, int64_t begin, int64_t end, std::index_sequence<row...>) {
  using Run = void (*)(const MatmulWork&, int64_t, int64_t, int64_t);
  static constexpr std::array<Run, most_rows> short_runs{&dot_columns<T, int(row) + 1, true>...};
  static constexpr std::array<Run, most_rows> long_runs{&dot_columns<T, int(row) + 1, false>...};
  const bool short_rows = work.k * int64_t(sizeof(T)) <= short_row_bytes;
  // A strip of weight rows small enough to stay in cache while all rows of `a` pass.
  const int64_t strip = round_up(divide_up(16 * 1024, std::max<int64_t>(1, work.k)), column_unit);
  for (int64_t column = begin; column < end; column += strip) {
    const int64_t column_end = std::min(end, column + strip);
    for (int64_t first = 0; first < work.m; first += most_rows) {
      const auto rows = static_cast<size_t>(std::min<int64_t>(most_rows, work.m - first));
      (short_rows ? short_runs : long_runs)[rows - 1](work, first, column, column_end);
    }
  }
}

void dot_units(const MatmulWork& work, int64_t first, int64_t last) {
  constexpr auto all_rows = std::make_index_sequence<most_rows>();
  const int64_t begin = first * column_unit;
  const int64_t end = std::min(work.n, last * column_unit);
  switch (work.weight_type) {
    case DType::bf16:
      return dot_rows<bf16>(work, begin, end, all_rows);
    case DType::f16:
      return dot_rows<f16>(work, begin, end, all_rows);
    default:
      return dot_rows<float>(work, begin, end, all_rows);
  }
}

void few_rows(const Context& context, std::span<const MatmulWork> products) {
  int64_t units = 0, weights = 0;
  for (const MatmulWork& work : products) {
    units += divide_up(work.n, column_unit);
    weights += work.n * work.k;
  }
  // One piece for each thread, since every new place in memory is read slowly at first, of at least
  // 16 Ki weights.
  const int64_t share = divide_up(units, context.threads->threads());
  const int64_t least = divide_up(16 * 1024 * units, std::max<int64_t>(1, weights));
  context.threads->parallel_for(units, std::max(share, least), [&](int64_t first, int64_t last) {
    for (const MatmulWork& work : products) {
      const int64_t own = divide_up(work.n, column_unit);
      if (first < own && last > 0) {
        dot_units(work, std::max<int64_t>(first, 0), std::min(last, own));
      }
      first -= own;
      last -= own;
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::cpu {
HWY_EXPORT(few_rows);

void matmul_rows(const Context& context, std::span<const MatmulWork> products) {
  HWY_DYNAMIC_DISPATCH(few_rows)(context, products);
}
}  // namespace kinora::cpu
#endif
