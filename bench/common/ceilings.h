// What this machine can do at most, measured in the same run as what is compared with it: the f32
// matrix product of the best library present, and reading memory.
#pragma once

#include <string>
#include <vector>

#include "base/system/host_range.h"
#include "base/threads.h"
#include "common/samples.h"

namespace kinora::bench {

// 2048 × 2048 × 2048 in f32 on all threads of the pool. Each sample is the best of OpenBLAS's and
// oneDNN's sgemm (those that were found when kinora was configured), measured one after the other.
class MatmulCeiling {
 public:
  explicit MatmulCeiling(const ThreadPool& threads);
  bool available() const;  // false when no library was found
  void sample();
  const Samples& gflops() const { return best_; }
  std::string library() const;  // the one that was best in the median

 private:
  struct Library {
    std::string name;
    Samples gflops;
  };
  int threads_;
  std::vector<float> a_, b_, c_;
  std::vector<Library> libraries_;
  Samples best_;
};

// Reading a buffer much larger than any cache, once, on all threads of the pool. It lies in large
// pages where the system has them, and a thread reads several places of it at a time: one after the
// other, a core waits for memory more than it must.
class ReadCeiling {
 public:
  explicit ReadCeiling(const ThreadPool& threads);
  void sample();
  const Samples& gigabytes_per_second() const { return speed_; }
  // What it holds in memory.
  double gigabytes() const;

 private:
  const ThreadPool& threads_;
  HostRange buffer_;
  Samples speed_;
};

}  // namespace kinora::bench
