// What every stage did when, for traces and timelines. Stages on any thread add spans; the session
// hands them out with the answer.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <kinora/session.h>

namespace kinora {

class SpanRecorder {
 public:
  using Clock = std::chrono::steady_clock;

  void add(std::string lane, std::string name, Clock::time_point begin, Clock::time_point end) {
    const auto since = [&](Clock::time_point time) {
      return std::chrono::duration<double>(time - origin_).count();
    };
    const std::lock_guard lock(mutex_);
    spans_.push_back({std::move(lane), std::move(name), since(begin), since(end)});
  }
  void add(std::string lane, std::string name, Clock::time_point begin) {
    add(std::move(lane), std::move(name), begin, Clock::now());
  }

  std::vector<Span> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(spans_, {});
  }

 private:
  const Clock::time_point origin_ = Clock::now();
  std::mutex mutex_;
  std::vector<Span> spans_;
};

}  // namespace kinora
