// How long a call keeps a GPU busy.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "base/context.h"
#include "base/gpu.h"

namespace kinora::bench {

// Median seconds of a call, by the device's clock, after two to warm up.
inline double gpu_seconds(const Context& context, int repeats, const std::function<void()>& call) {
  call();
  call();
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    GpuEvent begin(context.device, true), end(context.device, true);
    begin.record(context);
    call();
    end.record(context);
    seconds.push_back(end.seconds_since(begin));
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace kinora::bench
