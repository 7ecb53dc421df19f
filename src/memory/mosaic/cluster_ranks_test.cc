// The order of clusters on a GPU against a sort of all of them.
#include "memory/mosaic/cluster_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/threads.h"
#include "support/random_data.h"

namespace kinora {
namespace {

Tensor placed(const std::vector<float>& values) {
  Tensor out(DType::f32, {std::ssize(values)}, Device::cuda());
  copy_bytes(out.view().raw(), Device::cuda(), values.data(), Device::cpu(),
             values.size() * sizeof(float));
  return out;
}

// Few different masses, so that many are equal, and clusters that do not count, however many of
// them a thread has to look at.
TEST(ClusterRanks, TheBestComeFirstAndOfEqualOnesTheLowerPlace) {
  std::string why;
  if (cuda_devices(&why).empty()) GTEST_SKIP() << why;
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(1);
  const Context context(threads, Device::cuda());
  for (const int64_t count : {1, 63, 65, 1025, 2048, 2049, 8192, 8193, 16384, 16385, 65537}) {
    for (const int64_t different : {1, 5, 300, 1'000'000}) {
      std::vector<float> mass, logs;
      for (int64_t i = 0; i < count; ++i) {
        mass.push_back(static_cast<float>(random.below(different) - different / 3) * 0.01f);
        logs.push_back(random.below(9) == 0 ? -INFINITY : 0.0f);
      }
      if (random.below(2) == 0) mass[static_cast<size_t>(random.below(count))] = NAN;
      const auto group = [&](int32_t place) {
        const auto i = static_cast<size_t>(place);
        return !(logs[i] > -INFINITY) ? 2 : std::isnan(mass[i]) ? 1 : 0;
      };
      std::vector<int32_t> expected(static_cast<size_t>(count));
      std::iota(expected.begin(), expected.end(), 0);
      std::stable_sort(expected.begin(), expected.end(), [&](int32_t a, int32_t b) {
        const int of_a = group(a), of_b = group(b);
        if (of_a != of_b) return of_a < of_b;
        return of_a == 0 && mass[static_cast<size_t>(a)] > mass[static_cast<size_t>(b)];
      });
      const Tensor masses = placed(mass), weights = placed(logs);
      for (const int64_t most : {int64_t{1}, 1 + random.below(1024), 1 + random.below(count)}) {
        const int64_t wanted = std::min(count, most);
        Tensor out(DType::i32, {wanted}, Device::cuda());
        cuda::best_clusters(context, masses, weights, out.view());
        const Tensor here = out.to(Device::cpu());
        const auto* first = here.data<int32_t>();
        ASSERT_EQ(std::vector(first, first + wanted),
                  std::vector(expected.begin(), expected.begin() + wanted))
            << count << " clusters, " << wanted << " wanted, " << different << " masses";
      }
    }
  }
}

}  // namespace
}  // namespace kinora
