// Joins two stages of the pipeline: the producer waits while the queue is full, the consumer while
// it is empty, and either side can end it. One producer, one consumer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "base/cancel.h"

namespace kinora {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // Waits for room. False once the queue is stopped: the producer should end.
  bool push(T item) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || items_.size() < capacity_; });
    if (stopped_) return false;
    items_.push_back(std::move(item));
    changed_.notify_all();
    return true;
  }
  // Never waits: with `most` items in the queue the oldest goes, to `lost`.
  bool push_dropping(T item, size_t most, std::optional<T>& lost) {
    const std::lock_guard lock(mutex_);
    if (stopped_) return false;
    if (items_.size() >= most) {
      lost = std::move(items_.front());
      items_.pop_front();
    }
    items_.push_back(std::move(item));
    changed_.notify_all();
    return true;
  }
  // No item will follow; with an error, the consumer gets it after the last item.
  void finish(std::exception_ptr error = nullptr) {
    const std::lock_guard lock(mutex_);
    finished_ = true;
    error_ = std::move(error);
    changed_.notify_all();
  }

  // The next item, or nothing at the end or once stopped. Throws the producer's error, and a
  // cancelled error soon after the token was raised.
  std::optional<T> pop(const CancelToken& cancel) {
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return stopped_ || finished_ || !items_.empty(); };
    while (!changed_.wait_for(lock, std::chrono::milliseconds(20), ready)) cancel.check();
    cancel.check();
    if (stopped_) return std::nullopt;
    if (items_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return std::nullopt;
    }
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    changed_.notify_all();
    return item;
  }

  // The next item if there is one now. Throws the producer's error after the last one.
  std::optional<T> pop_ready() {
    const std::lock_guard lock(mutex_);
    if (stopped_) return std::nullopt;
    if (items_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return std::nullopt;
    }
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    changed_.notify_all();
    return item;
  }

  // Wakes both sides and drops what waits; nothing passes from now on.
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    items_.clear();
    changed_.notify_all();
  }

 private:
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> items_;
  std::exception_ptr error_;
  bool finished_ = false;
  bool stopped_ = false;
};

}  // namespace kinora
