#include <cstdint>

#include "memory/row_ops/vectors.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "memory/row_ops/vectors_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora {
namespace HWY_NAMESPACE {

HWY_NOINLINE float dot_of(const float* a, const float* b, size_t count) {
  return sum_over(static_cast<int64_t>(count),
                  [&](auto d, int64_t at, auto part, auto sum) HWY_ATTR {
                    return hn::MulAdd(part.load(d, a + at), part.load(d, b + at), sum);
                  });
}

HWY_NOINLINE float squared_distance_of(const float* a, const float* b, size_t count) {
  return sum_over(static_cast<int64_t>(count),
                  [&](auto d, int64_t at, auto part, auto sum) HWY_ATTR {
                    const auto apart = hn::Sub(part.load(d, a + at), part.load(d, b + at));
                    return hn::MulAdd(apart, apart, sum);
                  });
}

HWY_NOINLINE void multiply_by(float* vector, float factor, size_t count) {
  for_vectors(static_cast<int64_t>(count), [&](auto d, int64_t at, auto part) HWY_ATTR {
    part.store(d, hn::Mul(part.load(d, vector + at), hn::Set(d, factor)), vector + at);
  });
}

HWY_NOINLINE MovedMean move_mean_by(float* mean, const float* point, float share, size_t count) {
  const hn::ScalableTag<float> d;
  auto distance = hn::Zero(d), squares = hn::Zero(d);
  for_vectors(static_cast<int64_t>(count), [&](auto tag, int64_t at, auto part) HWY_ATTR {
    const auto before = part.load(tag, mean + at);
    const auto apart = hn::Sub(part.load(tag, point + at), before);
    const auto moved = hn::MulAdd(apart, hn::Set(tag, share), before);
    distance = hn::MulAdd(apart, apart, distance);
    squares = hn::MulAdd(moved, moved, squares);
    part.store(tag, moved, mean + at);
  });
  return {hn::GetLane(hn::SumOfLanes(d, distance)), hn::GetLane(hn::SumOfLanes(d, squares))};
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora {
HWY_EXPORT(dot_of);
HWY_EXPORT(squared_distance_of);
HWY_EXPORT(multiply_by);
HWY_EXPORT(move_mean_by);

float dot(const float* a, const float* b, size_t count) {
  return HWY_DYNAMIC_DISPATCH(dot_of)(a, b, count);
}
float squared_distance(const float* a, const float* b, size_t count) {
  return HWY_DYNAMIC_DISPATCH(squared_distance_of)(a, b, count);
}
void multiply(float* vector, float factor, size_t count) {
  HWY_DYNAMIC_DISPATCH(multiply_by)(vector, factor, count);
}
MovedMean move_mean(float* mean, const float* point, float share, size_t count) {
  return HWY_DYNAMIC_DISPATCH(move_mean_by)(mean, point, share, count);
}
}  // namespace kinora
#endif
