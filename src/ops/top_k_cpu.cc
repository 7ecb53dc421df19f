#include <algorithm>
#include <limits>

#include "ops/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/top_k_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kinora::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The largest value first, at vector speed, then its first place.
int64_t argmax(const float* x, int64_t n) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::MaxLanes(d));
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto highest = lowest;
  int64_t at = 0;
  for (; at + lanes <= n; at += lanes) {
    const auto value = hn::LoadU(d, x + at);
    highest = hn::Max(highest, hn::IfThenElse(hn::IsNaN(value), lowest, value));
  }
  float best = hn::GetLane(hn::MaxOfLanes(d, highest));
  for (; at < n; ++at) best = x[at] > best ? x[at] : best;
  const float* found = std::find(x, x + n, best);
  return found == x + n ? -1 : found - x;
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::cpu {
HWY_EXPORT(argmax);

int64_t argmax(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(argmax)(x, n); }
}  // namespace kinora::cpu
#endif
