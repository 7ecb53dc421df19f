// What an op needs to run: the device of its tensors and the threads it may use. Passed by
// reference down every call of ops/, attention/, model/; holds no state of any run.
#pragma once

#include "base/device.h"
#include "base/threads.h"

namespace kinora {

struct Context {
  Device device;
  const ThreadPool* threads = nullptr;  // never null

  explicit Context(const ThreadPool& pool, Device where = Device::cpu())
      : device(where), threads(&pool) {}
};

}  // namespace kinora
