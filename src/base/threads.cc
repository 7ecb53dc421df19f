#include "base/threads.h"

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#include <sched.h>

#include <algorithm>

#include "base/team.h"

namespace kinora {
namespace {

int usable_cores() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) return CPU_COUNT(&allowed);
  return 1;
}

}  // namespace

struct ThreadPool::Arena {
  explicit Arena(int threads) : team(threads), arena(threads) {}
  Team team;                      // runs the loops, one at a time
  oneapi::tbb::task_arena arena;  // runs loops inside loops, and those of a second thread
};

ThreadPool::ThreadPool(int threads)
    : threads_(threads > 0 ? threads : std::max(1, usable_cores())),
      arena_(std::make_unique<Arena>(threads_)) {}

ThreadPool::~ThreadPool() = default;

void ThreadPool::parallel_for(int64_t count, int64_t grain,
                              const std::function<void(int64_t, int64_t)>& work) const {
  if (count <= 0) return;
  grain = std::max<int64_t>(1, grain);
  if (threads_ == 1 || count <= grain) {
    work(0, count);
    return;
  }
  if (arena_->team.try_parallel_for(count, grain, work)) return;
  arena_->arena.execute([&] {
    using Range = oneapi::tbb::blocked_range<int64_t>;
    oneapi::tbb::parallel_for(
        Range(0, count, static_cast<size_t>(grain)),
        [&](const Range& range) { work(range.begin(), range.end()); },
        oneapi::tbb::simple_partitioner());
  });
}

}  // namespace kinora
