// Shares the cores of a machine without a GPU between computing and decoding. Both want all of
// them, and a loop that runs on every core waits for the slowest, so decoding alongside it costs
// more than it gains. While the gate is closed, only as many decoders run as there are cores to
// spare; the others pause between two packets until somebody waits for their frames.
#pragma once

#include <condition_variable>
#include <mutex>

namespace kinora {

class CoreGate {
 public:
  // Decoders below this number never wait.
  explicit CoreGate(int spare) : spare_(spare) {}

  void close() { set(true); }
  void open() { set(false); }

  // Called by decoder `number` between two packets.
  void pass(int number) {
    if (number < spare_) return;
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return !closed_; });
  }

 private:
  void set(bool closed) {
    {
      const std::lock_guard lock(mutex_);
      closed_ = closed;
    }
    if (!closed) opened_.notify_all();
  }

  const int spare_;
  std::mutex mutex_;
  std::condition_variable opened_;
  bool closed_ = false;
};

}  // namespace kinora
