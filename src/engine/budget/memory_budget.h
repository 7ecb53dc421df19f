// How much memory the rows of all sessions of an engine may take together. Every session holds a
// share that follows its rows: grown before a group is prefilled, returned when rows are dropped.
// Sessions planned when there was room may still compete later; the last one to ask is refused.
#pragma once

#include <cstdint>
#include <limits>
#include <mutex>

namespace kinora {

class MemoryBudget {
 public:
  // Bytes for rows; the largest int64_t means no limit.
  explicit MemoryBudget(int64_t limit = std::numeric_limits<int64_t>::max()) : limit_(limit) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  void set_limit(int64_t limit) { limit_ = limit; }
  int64_t limit() const { return limit_; }
  int64_t used() const {
    const std::lock_guard lock(mutex_);
    return used_;
  }

  // The part of one session; given back at its end.
  class Share {
   public:
    explicit Share(MemoryBudget& budget) : budget_(budget) {}
    ~Share() { resize(0); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // The first bytes of this session's rows, which the share of another session counts.
    void set_counted_elsewhere(int64_t bytes) { elsewhere_ = bytes; }

    // False, and nothing changes, when the others leave no room. Shrinking always succeeds.
    bool resize(int64_t rows) {
      const int64_t bytes = rows > elsewhere_ ? rows - elsewhere_ : 0;
      const std::lock_guard lock(budget_.mutex_);
      if (bytes > bytes_ && bytes - bytes_ > budget_.limit_ - budget_.used_) return false;
      budget_.used_ += bytes - bytes_;
      bytes_ = bytes;
      return true;
    }
    // The most that resize would grant now.
    int64_t most() const {
      const std::lock_guard lock(budget_.mutex_);
      if (budget_.limit_ == std::numeric_limits<int64_t>::max()) return budget_.limit_;
      return elsewhere_ + bytes_ +
             (budget_.limit_ > budget_.used_ ? budget_.limit_ - budget_.used_ : 0);
    }

   private:
    MemoryBudget& budget_;
    int64_t bytes_ = 0;
    int64_t elsewhere_ = 0;
  };

 private:
  int64_t limit_;  // set before there are sessions
  mutable std::mutex mutex_;
  int64_t used_ = 0;
};

}  // namespace kinora
