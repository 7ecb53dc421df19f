// Looks for neighbours of a packet in the index: the next keyframe, the last shown picture. A file
// may hold a million packets without either, and a damaged one asks at every packet; questions of a
// worker ascend, so each answer is kept and nothing is walked through twice.
#pragma once

#include <cstdint>

#include "base/loop_guard.h"
#include "video/index/index.h"

namespace kinora {

class IndexWalk {
 public:
  explicit IndexWalk(const VideoIndex& index) : index_(index) {}

  // The first keyframe behind `packet`; the number of packets where there is none.
  int64_t next_key(int64_t packet) {
    if (next_key_.asked < 0 || packet < next_key_.asked || packet >= next_key_.found) {
      const auto count = static_cast<int64_t>(index_.packets.size());
      int64_t next = packet + 1;
      for (; next < count && !index_.packet(next).key; ++next) guard_.turn();
      next_key_ = {packet, next};
    }
    return next_key_.found;
  }

  // The last packet up to `packet` that is shown; 0 where there is none.
  int64_t last_shown(int64_t packet) {
    int64_t shown = packet;
    while (shown > 0 && index_.packet(shown).frame < 0) {
      guard_.turn();
      if (shown == shown_.asked) {
        shown = shown_.found;
        break;
      }
      --shown;
    }
    if (shown != packet) shown_ = {packet, shown};
    return shown;
  }

  int64_t turns() const { return guard_.turns(); }

 private:
  struct Known {
    int64_t asked = -1;
    int64_t found = -1;
  };
  const VideoIndex& index_;
  LoopGuard guard_;
  Known next_key_;
  Known shown_;
};

}  // namespace kinora
