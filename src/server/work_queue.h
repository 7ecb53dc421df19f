// Work that waits its turn. Each client has a line of its own and the lines take turns, so that one
// who sends a hundred requests does not keep the others waiting. Used by service.cc.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/cancel.h"

namespace kinora::server {

struct Work {
  std::function<void()> run;
  // Raised when the time is up, whether the work waits or runs.
  CancelToken cancel;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
};

class WorkQueue {
 public:
  WorkQueue(int threads, int64_t max_waiting);
  // What waits is run with its token raised.
  ~WorkQueue();

  // Throws ApiError 429 when too much waits already, in all or of this client.
  void add(const std::string& client, Work work);

  int64_t waiting() const;
  int64_t running() const;

 private:
  void work();
  void watch();
  bool next(Work& work);  // with the lock held

  const int64_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::deque<Work>> lines_;
  std::deque<std::string> turns_;  // clients with work that waits
  int64_t waiting_ = 0;
  std::list<Work> running_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kinora::server
