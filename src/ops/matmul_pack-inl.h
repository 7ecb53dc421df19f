// Packing for the blocked matrix product: rows of a matrix become panels in which the values that
// the kernel needs together lie together, widened to f32. Included once per Highway target.
#if defined(KINORA_OPS_MATMUL_PACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KINORA_OPS_MATMUL_PACK_INL_H
#undef KINORA_OPS_MATMUL_PACK_INL_H
#else
#define KINORA_OPS_MATMUL_PACK_INL_H
#endif

#include <hwy/highway.h>

#include "ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
// Four rows become columns of a panel, four values at a time; returns how many values were done.
template <typename T>
HWY_INLINE int64_t pack_four_rows(const T* rows, int64_t stride, int64_t width, int64_t k,
                                  float* panel) {
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> d2;
  int64_t j = 0;
  for (; j + 4 <= k; j += 4, panel += 4 * width) {
    const auto r0 = load_f32(d, rows + j);
    const auto r1 = load_f32(d, rows + j + stride);
    const auto r2 = load_f32(d, rows + j + 2 * stride);
    const auto r3 = load_f32(d, rows + j + 3 * stride);
    const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d, r0, r1));   // 00 10 01 11
    const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d, r0, r1));  // 02 12 03 13
    const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d, r2, r3));
    const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d, r2, r3));
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, low01, low23)), d, panel);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, low01, low23)), d, panel + width);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, high01, high23)), d, panel + 2 * width);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, high01, high23)), d, panel + 3 * width);
  }
  return j;
}
#endif

inline float widened(float value) { return value; }
template <typename T>
float widened(T value) {
  return value.to_float();
}

// panel[j][i] = rows[i][j] for i < count and zero for count ≤ i < width, j < k.
// Rows lie `stride` elements apart.
template <typename T>
HWY_NOINLINE void pack_panel(const T* rows, int64_t stride, int64_t count, int64_t width, int64_t k,
                             float* panel) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; i + 4 <= count; i += 4) {
    const T* four = rows + i * stride;
    for (int64_t j = pack_four_rows(four, stride, width, k, panel + i); j < k; ++j) {
      for (int64_t r = 0; r < 4; ++r) panel[j * width + i + r] = widened(four[r * stride + j]);
    }
  }
#endif
  for (; i < width; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      panel[j * width + i] = i < count ? widened(rows[i * stride + j]) : 0.0f;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora
HWY_AFTER_NAMESPACE();

#endif
