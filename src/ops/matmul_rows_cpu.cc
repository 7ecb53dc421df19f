#include <algorithm>
#include <array>
#include <utility>

#include "ops/matmul_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/matmul_rows_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/vector-inl.h"

// Every weight row is read once for up to eight rows of `a`, which stay in cache. The sums of a
// rows × columns tile stand in registers, one vector a dot product, and are reduced at the end.

HWY_BEFORE_NAMESPACE();
namespace kinora::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace kinora::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using Vector = hn::Vec<Tag>;
constexpr int64_t lanes = hn::MaxLanes(Tag());
constexpr int most_rows = 8;

// Weight rows taken together, and pairs of vectors of each. The sums fill the registers of NEON or
// AVX-512; a lone row of `a` has few dot products, so each is cut in more parts to hide latency.
constexpr int columns_for(int rows) { return rows <= 3 ? 4 : rows == 4 ? 3 : rows <= 6 ? 2 : 1; }
constexpr int pairs_for(int rows) { return rows == 1 ? 2 : 1; }

template <typename T, int rows, int columns>
HWY_NOINLINE void dot_tile(const float* HWY_RESTRICT a, int64_t a_stride,
                           const T* HWY_RESTRICT weight, int64_t weight_stride, int64_t k,
                           float (&result)[most_rows][8]) {
  constexpr int pairs = pairs_for(rows);
  constexpr int64_t step = pairs * 2 * lanes;
  const Tag d;
  Vector sums[rows][columns][2 * pairs];
  repeat<rows>([&](auto r) HWY_ATTR {
    repeat<columns>([&](auto c) HWY_ATTR {
      repeat<2 * pairs>([&](auto p) HWY_ATTR { sums[r][c][p] = hn::Zero(d); });
    });
  });
  int64_t j = 0;
  for (; j + step <= k; j += step) {
    repeat<pairs>([&](auto p) HWY_ATTR {
      const int64_t at = j + p * 2 * lanes;
      repeat<columns>([&](auto c) HWY_ATTR {
        Vector w0, w1;
        load_f32_pair(d, weight + c * weight_stride + at, w0, w1);
        repeat<rows>([&](auto r) HWY_ATTR {
          const float* row = a + r * a_stride + at;
          Vector(&sum)[2 * pairs] = sums[r][c];
          sum[2 * p] = hn::MulAdd(w0, hn::LoadU(d, row), sum[2 * p]);
          sum[2 * p + 1] = hn::MulAdd(w1, hn::LoadU(d, row + lanes), sum[2 * p + 1]);
        });
      });
    });
  }
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
  repeat<rows>([&](auto r) HWY_ATTR {
    repeat<columns>([&](auto c) HWY_ATTR {
      Vector sum = sums[r][c][0];
      repeat<2 * pairs - 1>([&](auto p) HWY_ATTR { sum = hn::Add(sum, sums[r][c][p + 1]); });
      result[r][c] = hn::GetLane(hn::SumOfLanes(d, sum));
    });
  });
}

// Columns [begin, end) of out for `rows` rows from `first_row`.
template <typename T, int rows>
void dot_columns(const MatmulWork& work, int64_t first_row, int64_t begin, int64_t end) {
  constexpr int columns = columns_for(rows);
  const float* a = work.a + first_row * work.a_stride;
  for (int64_t column = begin; column < end; column += columns) {
    const T* weight = static_cast<const T*>(work.weight) + column * work.weight_stride;
    const int64_t count = std::min<int64_t>(columns, end - column);
    float result[most_rows][8];
    if (count == columns) {
      dot_tile<T, rows, columns>(a, work.a_stride, weight, work.weight_stride, work.k, result);
    } else {
      for (int64_t c = 0; c < count; ++c) {
        float one[most_rows][8];
        dot_tile<T, rows, 1>(a, work.a_stride, weight + c * work.weight_stride, work.weight_stride,
                             work.k, one);
        for (int r = 0; r < rows; ++r) result[r][c] = one[r][0];
      }
    }
    for (int r = 0; r < rows; ++r) {
      float* out = work.out + (first_row + r) * work.out_stride + column;
      for (int64_t c = 0; c < count; ++c) {
        float value = result[r][c];
        if (work.bias) value += work.bias[column + c];
        out[c] = work.accumulate ? out[c] + value : value;
      }
    }
  }
}

template <typename T, size_t... row>
void dot_rows(const MatmulWork& work, int64_t begin, int64_t end, std::index_sequence<row...>) {
  using Run = void (*)(const MatmulWork&, int64_t, int64_t, int64_t);
  static constexpr std::array<Run, most_rows> runs{&dot_columns<T, int(row) + 1>...};
  // A strip of weight rows small enough to stay in cache while all rows of `a` pass.
  const int64_t strip = std::max<int64_t>(8, 16 * 1024 / std::max<int64_t>(1, work.k) / 8 * 8);
  for (int64_t column = begin; column < end; column += strip) {
    const int64_t column_end = std::min(end, column + strip);
    for (int64_t first = 0; first < work.m; first += most_rows) {
      const int64_t rows = std::min<int64_t>(most_rows, work.m - first);
      runs[static_cast<size_t>(rows - 1)](work, first, column, column_end);
    }
  }
}

void few_rows(const Context& context, const MatmulWork& work) {
  // Pieces of at least 64 KiB of weights and a few a thread; multiples of 12 suit every tile width.
  const int64_t share = work.n / (8 * context.threads->threads());
  const int64_t least = 16 * 1024 / std::max<int64_t>(1, work.k) + 1;
  const int64_t grain = (std::max(share, least) + 11) / 12 * 12;
  context.threads->parallel_for(work.n, grain, [&](int64_t begin, int64_t end) {
    constexpr auto all_rows = std::make_index_sequence<most_rows>();
    switch (work.weight_type) {
      case DType::bf16:
        return dot_rows<bf16>(work, begin, end, all_rows);
      case DType::f16:
        return dot_rows<f16>(work, begin, end, all_rows);
      default:
        return dot_rows<float>(work, begin, end, all_rows);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::cpu {
HWY_EXPORT(few_rows);

void matmul_rows(const Context& context, const MatmulWork& work) {
  HWY_DYNAMIC_DISPATCH(few_rows)(context, work);
}
}  // namespace kinora::cpu
#endif
