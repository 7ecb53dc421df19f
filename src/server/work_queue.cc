#include "server/work_queue.h"

#include <algorithm>

#include "server/api_error.h"

namespace kinora::server {

WorkQueue::WorkQueue(int threads, int64_t max_waiting) : max_waiting_(max_waiting) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  threads_.emplace_back([this] { watch(); });
}

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    for (auto& [client, line] : lines_) {
      for (const Work& waiting : line) waiting.cancel.cancel();
    }
    for (const Work& running : running_) running.cancel.cancel();
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void WorkQueue::add(const std::string& client, Work work) {
  const std::lock_guard lock(mutex_);
  std::deque<Work>& line = lines_[client];
  // Half of the places are for whoever has fewer.
  const bool full =
      waiting_ >= max_waiting_ || std::ssize(line) >= std::max<int64_t>(1, max_waiting_ / 2);
  if (full || ending_) {
    if (line.empty()) lines_.erase(client);
    ApiError error(429, "queue_full", "too many requests wait already; ask again later");
    error.retry_after = 2;
    throw error;
  }
  if (line.empty()) turns_.push_back(client);
  line.push_back(std::move(work));
  ++waiting_;
  changed_.notify_all();
}

bool WorkQueue::next(Work& work) {
  if (turns_.empty()) return false;
  const std::string client = turns_.front();
  turns_.pop_front();
  std::deque<Work>& line = lines_[client];
  work = std::move(line.front());
  line.pop_front();
  --waiting_;
  if (line.empty()) {
    lines_.erase(client);
  } else {
    turns_.push_back(client);
  }
  return true;
}

void WorkQueue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    Work work;
    changed_.wait(lock, [&] { return ending_ || !turns_.empty(); });
    if (!next(work)) return;
    const auto place = running_.insert(running_.end(), work);
    lock.unlock();
    work.run();
    work = {};  // its reply goes out before the next begins
    lock.lock();
    running_.erase(place);
  }
}

void WorkQueue::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    const auto now = std::chrono::steady_clock::now();
    const auto look = [&](const Work& work) {
      if (work.deadline <= now) work.cancel.cancel();
    };
    for (const auto& [client, line] : lines_) {
      for (const Work& work : line) look(work);
    }
    for (const Work& work : running_) look(work);
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
}

int64_t WorkQueue::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_;
}

int64_t WorkQueue::running() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(running_);
}

}  // namespace kinora::server
