// What a video may cost before kinora refuses it. Files lie about their size and hostile ones lie
// on purpose, so every number that memory or time depends on is held against these. All can be
// raised by the caller; the messages name the number found and the limit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace kinora {

struct VideoLimits {
  int64_t max_side = 16384;                       // pixels of the longer side
  int64_t max_pixels = int64_t{128} << 20;        // of one decoded picture
  int64_t max_packets = int64_t{32} << 20;        // in the index: 6 days at 60 fps
  int64_t max_samples = int64_t{1} << 20;         // that one choice may ask for
  int64_t max_packet_bytes = int64_t{256} << 20;  // of one compressed picture
  int64_t max_spool_bytes = int64_t{16} << 30;    // of a pipe or download kept in a temporary file
  int64_t max_queue_bytes = int64_t{512} << 20;   // of converted frames that wait to be taken
  bool other_hosts = false;                       // a remote playlist may lead to other hosts
  const char* how_to_raise = "";  // for people, as the caller lets them: " (--flag)"; ends messages

  // So many times as much of everything, but what waits in memory; at least 1 of each.
  void raise(double times) {
    for (int64_t* limit : {&max_side, &max_pixels, &max_packets, &max_samples, &max_packet_bytes,
                           &max_spool_bytes}) {
      const double raised = static_cast<double>(*limit) * times;
      *limit = static_cast<int64_t>(std::clamp(raised, 1.0, 4e18));
    }
    max_side = std::min<int64_t>(max_side, INT32_MAX);
  }
};

}  // namespace kinora
