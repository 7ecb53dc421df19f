// A pool of worker threads: a team that stays awake between short loops (team.h), and oneTBB for
// loops inside loops and for several callers at once. A pool is made once by whoever owns the run
// (the engine, a test) and passed down in a Context.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace kinora {

class ThreadPool {
 public:
  // 0 means one thread per core that this process may use.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls work(begin, end) over [0, count) in pieces of about `grain` elements. Runs inline when
  // one piece suffices. The first exception thrown by a piece is rethrown here.
  void parallel_for(int64_t count, int64_t grain,
                    const std::function<void(int64_t begin, int64_t end)>& work) const;

 private:
  struct Arena;
  int threads_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace kinora
