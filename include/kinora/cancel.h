// A flag that any thread may raise to stop work under way. Copies share the flag. Long loops call
// `check` between pieces; it throws a cancelled error once the flag is up.
#pragma once

#include <atomic>
#include <memory>

#include <kinora/error.h>

namespace kinora {

class CancelToken {
 public:
  CancelToken() : raised_(std::make_shared<std::atomic<bool>>(false)) {}

  void cancel() const { raised_->store(true, std::memory_order_relaxed); }
  bool cancelled() const { return raised_->load(std::memory_order_relaxed); }
  void check() const {
    if (cancelled()) throw Error(ErrorKind::cancelled, "cancelled");
  }

 private:
  std::shared_ptr<std::atomic<bool>> raised_;
};

}  // namespace kinora
