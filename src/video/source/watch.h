// Keeps blocking reads from blocking for ever: FFmpeg asks it between waits whether to give up,
// because someone cancelled or because a source has been silent for too long.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

#include "base/cancel.h"

namespace kinora {

class Watch {
 public:
  // `stop` is the owner's own flag, `cancel` the caller's.
  explicit Watch(const CancelToken& cancel, const CancelToken& stop = {})
      : cancel_(cancel), stop_(stop) {}

  // From now on these count. Before the thread that reads is started.
  void obey(const CancelToken& cancel, const CancelToken& stop) {
    cancel_ = cancel;
    stop_ = stop;
  }

  // From now on, giving up happens after `seconds` without another call.
  void allow(double seconds) {
    const auto span = std::chrono::duration<double>(seconds);
    deadline_ = now() + std::chrono::duration_cast<std::chrono::nanoseconds>(span).count();
  }

  bool cancelled() const { return cancel_.cancelled() || stop_.cancelled(); }
  bool late() const { return now() > deadline_; }
  bool give_up() const { return cancelled() || late(); }

  // For AVIOInterruptCB.
  static int ask(void* watch) { return static_cast<const Watch*>(watch)->give_up() ? 1 : 0; }

 private:
  static int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

  CancelToken cancel_;
  CancelToken stop_;
  std::atomic<int64_t> deadline_ = std::numeric_limits<int64_t>::max();
};

}  // namespace kinora
