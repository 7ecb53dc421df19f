// Threads that stay awake for a moment between loops. During generation a decoder runs hundreds of
// short matrix products per token; waking a sleeping thread for each costs more than the product.
// Used only by ThreadPool, which falls back to oneTBB where a team is already at work.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kinora {

class Team {
 public:
  // `threads` counts the caller; the others start at the first loop.
  explicit Team(int threads) : threads_(threads) {}
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  using Work = std::function<void(int64_t begin, int64_t end)>;

  // Calls work over [0, count) in pieces of `grain` elements and returns true, or does nothing and
  // returns false where another loop of this team is under way (nested, or another thread's).
  // The first exception of a piece is rethrown; pieces not yet begun are then left out.
  bool try_parallel_for(int64_t count, int64_t grain, const Work& work);

 private:
  void start();
  void work_until_stopped();
  uint32_t wait_for_loop(uint32_t seen);
  void take_pieces();

  const int threads_;
  std::atomic_flag in_use_;
  std::vector<std::thread> workers_;

  // Which loop is the newest; workers spin on it, then sleep on it.
  alignas(64) std::atomic<uint32_t> loop_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
  // Workers inside the loop under way; `closed` while there is none to join.
  static constexpr uint32_t closed = 1u << 31;
  alignas(64) std::atomic<uint32_t> members_{closed};
  alignas(64) std::atomic<int64_t> next_{0};

  // The loop under way; read only by its members.
  const Work* work_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  std::mutex failure_lock_;
  std::exception_ptr failure_;
};

}  // namespace kinora
