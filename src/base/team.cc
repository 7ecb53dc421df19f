#include "base/team.h"

#include <algorithm>
#include <chrono>

namespace kinora {
namespace {

// Longer than what lies between two products of one token, too short to matter to anyone else.
constexpr std::chrono::microseconds awake_for{100};

void breathe() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` is a no-op on most cores; this waits ~10 ns
#endif
}

// Spins until done() or until the time is up, looking at the clock only now and then.
template <typename Done>
bool spin(const Done& done) {
  const auto until = std::chrono::steady_clock::now() + awake_for;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      breathe();
    }
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

}  // namespace

Team::~Team() {
  stop_ = true;
  loop_.fetch_add(1);
  loop_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Team::start() {
  while (static_cast<int>(workers_.size()) < threads_ - 1) {
    workers_.emplace_back([this] { work_until_stopped(); });
  }
}

bool Team::try_parallel_for(int64_t count, int64_t grain, const Work& work) {
  if (in_use_.test_and_set(std::memory_order_acquire)) return false;
  struct Release {
    std::atomic_flag& flag;
    ~Release() { flag.clear(std::memory_order_release); }
  } const release{in_use_};
  start();

  work_ = &work;
  count_ = count;
  grain_ = grain;
  failure_ = nullptr;
  next_.store(0, std::memory_order_relaxed);
  members_.store(0);  // publishes the loop: workers join with an acquiring exchange
  loop_.fetch_add(1);
  if (sleepers_.load() > 0) loop_.notify_all();

  take_pieces();
  members_.fetch_or(closed);
  while (!spin([&] { return members_.load() == closed; })) std::this_thread::yield();
  if (failure_) std::rethrow_exception(failure_);
  return true;
}

void Team::take_pieces() {
  while (true) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    try {
      (*work_)(begin, std::min(begin + grain_, count_));
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      const std::lock_guard<std::mutex> lock(failure_lock_);
      if (!failure_) failure_ = std::current_exception();
    }
  }
}

uint32_t Team::wait_for_loop(uint32_t seen) {
  const auto changed = [&] { return loop_.load() != seen; };
  if (!spin(changed)) {
    // The count comes before the last look at `loop_`, so that whoever starts a loop either sees
    // this sleeper or is seen by it.
    sleepers_.fetch_add(1);
    loop_.wait(seen);
    sleepers_.fetch_sub(1);
  }
  return loop_.load();
}

void Team::work_until_stopped() {
  uint32_t seen = 0;
  while (!stop_) {
    seen = wait_for_loop(seen);
    uint32_t members = members_.load();
    while ((members & closed) == 0 && !members_.compare_exchange_weak(members, members + 1)) {
    }
    if (members & closed) continue;
    take_pieces();
    members_.fetch_sub(1);
  }
}

}  // namespace kinora
