// Rows of any type, 8 bits included, into the packed operands of kernels-inl.h. Included once per
// Highway target.
#if defined(KINORA_ATTENTION_PACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KINORA_ATTENTION_PACK_INL_H
#undef KINORA_ATTENTION_PACK_INL_H
#else
#define KINORA_ATTENTION_PACK_INL_H
#endif

#include <hwy/highway.h>

#include "attention/cpu/kernels-inl.h"
#include "ops/packed_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::attention_cpu {
namespace HWY_NAMESPACE {

// Four keys of a block (null: zeros) from place `at`, a multiple of four, on.
//   packed: [groups][depth][key_group]   wide: [4][width], room for rows of 8 bits
template <typename T>
HWY_INLINE void pack_four(const T* const four[4], int64_t at, int64_t head_size, int64_t depth,
                          int64_t width, float* wide, float* packed) {
  float* to = packed + at / key_group * key_group * depth + at % key_group;
  if constexpr (is_code<T>) {
    const float* rows[4] = {};
    for (int i = 0; i < 4; ++i) {
      if (four[i] == nullptr) continue;
      widen_head(four[i], head_size, wide + i * width);
      rows[i] = wide + i * width;
    }
    pack_keys(rows, head_size, to);
  } else {
    pack_keys(four, head_size, to);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::attention_cpu
HWY_AFTER_NAMESPACE();

#endif
