// Counts the turns of loops over packets, lines or frames of a file, and ends them when somebody
// cancels. A file of a few megabytes can hold a million packets: a loop that is not linear in them,
// or that nobody can stop, hangs the program. Tests read the count and compare it with that of half
// the input.
#pragma once

#include <cstdint>

#include "base/cancel.h"

namespace kinora {

class LoopGuard {
 public:
  LoopGuard() = default;
  explicit LoopGuard(const CancelToken& cancel) : cancel_(cancel) {}

  // Called once per turn, or for several at once. Throws a cancelled error within 4,096 turns of
  // the cancelling.
  void turn(int64_t count = 1) {
    const int64_t before = turns_;
    turns_ += count;
    if (before >> 12 != turns_ >> 12) cancel_.check();
  }
  int64_t turns() const { return turns_; }

 private:
  CancelToken cancel_;
  int64_t turns_ = 0;
};

}  // namespace kinora
