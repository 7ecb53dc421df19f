#include "bench/median_seconds.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/gpu.h"

namespace kinora::cli {

double median_seconds(const Context& context, int repeats, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i <= repeats; ++i) {
    synchronize(context);
    const auto begin = std::chrono::steady_clock::now();
    work();
    synchronize(context);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    if (i > 0) times.push_back(elapsed.count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace kinora::cli
