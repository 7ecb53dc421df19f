// How much memory of a GPU this process has taken, against its budget. Shared by the pool of
// tensors and by memory that grows in place; only the .cu files of base/ include this.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kinora::cuda {

constexpr int most_devices = 64;

struct GpuAccount {
  std::atomic<int64_t> used{0};
  std::atomic<int64_t> peak{0};
  std::atomic<int64_t> budget{0};  // 0: none

  static GpuAccount& of(int device);
  void take(int device, int64_t bytes);  // throws a resource error beyond the budget
  void give_back(int64_t bytes) noexcept;
};

// Throws a resource error that says what was wanted and what is free.
[[noreturn]] void refuse_memory(int device, size_t bytes);
// Gives what the pool and spare ranges keep unused back to the driver, after all work has ended.
void trim_pool(int device) noexcept;

// Waits until the thread's device has nothing to do. While any thread captures a graph the driver
// refuses that, and spoils the capture: this waits for its end first.
void wait_for_device() noexcept;

}  // namespace kinora::cuda
