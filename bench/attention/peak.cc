#include "peak.h"

#include <atomic>
#include <chrono>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "peak.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace kinora::HWY_NAMESPACE;

// Enough independent chains to hide the latency of every multiply-add unit.
constexpr int chains = HWY_TARGET == HWY_NEON || HWY_TARGET <= HWY_AVX3 ? 24 : 12;

// Returns the operations done; `sink` keeps the compiler from dropping them.
HWY_NOINLINE double multiply_add(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  using Vector = hn::Vec<decltype(d)>;
  Vector sums[chains];
  repeat<chains>([&](auto i) HWY_ATTR { sums[i] = hn::Set(d, sink[0] + static_cast<float>(i)); });
  const Vector factor = hn::Set(d, 0.999f);
  const Vector term = hn::Set(d, sink[0]);
  for (int64_t round = 0; round < rounds; ++round) {
    repeat<chains>([&](auto i) HWY_ATTR { sums[i] = hn::MulAdd(term, factor, sums[i]); });
  }
  Vector total = hn::Zero(d);
  repeat<chains>([&](auto i) HWY_ATTR { total = hn::Add(total, sums[i]); });
  sink[0] = hn::GetLane(hn::SumOfLanes(d, total)) * 1e-30f;
  return 2.0 * chains * static_cast<double>(rounds) * static_cast<double>(hn::Lanes(d));
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::bench {

HWY_EXPORT(multiply_add);

double measure_peak_flops(const Context& context, double seconds) {
  using Clock = std::chrono::steady_clock;
  std::atomic<double> total{0};
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  context.threads->parallel_for(context.threads->threads(), 1, [&](int64_t, int64_t) {
    float sink[1] = {0};
    double done = 0;
    while (elapsed() < seconds) done += HWY_DYNAMIC_DISPATCH(multiply_add)(100000, sink);
    total.fetch_add(done);
  });
  return total.load() / elapsed();
}

}  // namespace kinora::bench
#endif
