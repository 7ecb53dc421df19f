// What a file lacks of what its header promises: one that was cut off, or is still being written.
// Used by engine/, which warns before it answers, and by `kinora probe` and `kinora frames`.
#pragma once

#include <algorithm>

#include "video/video.h"

namespace kinora {

// Seconds that are missing before `until`; 0 where they are few: a header rounds, and sound may
// last a little longer than pictures.
inline double missing_seconds(const VideoInfo& info, double until) {
  constexpr double least_seconds = 1, least_share = 0.02;
  const double missing = std::min(info.promised_duration, until) - info.duration;
  return missing <= std::max(least_seconds, least_share * info.promised_duration) ? 0 : missing;
}

}  // namespace kinora
