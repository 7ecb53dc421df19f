// What an op needs to run: the device of its tensors, the threads it may use and, on a GPU, the
// stream its work is put on. Passed by reference down every call of ops/, attention/, model/;
// holds no state of any run.
#pragma once

#include "base/device.h"
#include "base/threads.h"

namespace kinora {

struct Context {
  Device device;
  const ThreadPool* threads = nullptr;  // never null
  void* stream = nullptr;  // a cudaStream_t; null is the stream that copies and allocations use

  explicit Context(const ThreadPool& pool, Device where = Device::cpu())
      : device(where), threads(&pool) {}
};

}  // namespace kinora
