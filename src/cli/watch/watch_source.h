// The source of `kinora watch`: taken in piece by piece, opened again when its connection breaks,
// with pauses that grow. Says what happens; prints nothing.
#pragma once

#include <kinora/session.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "base/error.h"

namespace kinora::cli {

// Pauses before attempts to reach a source again: one second, then twice as long each time, up to a
// minute.
class BackOff {
 public:
  double next();
  void reset() { seconds_ = 0; }

 private:
  double seconds_ = 0;
};

// What a source of this name is when it ends without an error: over, or cut off. An address that
// streams by itself is cut off; files, pipes and what is fetched by HTTP have an end.
bool may_come_back(const std::string& source);

struct WatchEvents {
  std::function<void(const std::string& why, double pause)> broke;
  std::function<void(double seconds)> back;  // that it was away
  std::function<void(const std::string& text)> warn;
};

class WatchSource {
 public:
  // `tries`: attempts to reach it again before giving up; negative: no limit.
  WatchSource(Session& session, std::string source, int64_t tries, WatchEvents events);

  InputInfo open(InputOptions options);
  // Takes in a little of what has come, or tries to reach the source again when it is time to.
  // Returns whether anything was done. Throws what ended the source for good.
  bool step(const CancelToken& cancel);

  bool ended() const { return ended_; }
  double until() const { return until_; }  // seconds of the video
  int64_t frames() const { return frames_; }
  int64_t dropped() const { return dropped_; }
  int64_t breaks() const { return breaks_; }

 private:
  using Clock = std::chrono::steady_clock;
  void break_off(const std::string& why);
  bool try_again(const CancelToken& cancel);

  Session& session_;
  const std::string source_;
  const int64_t tries_;
  const WatchEvents events_;
  BackOff back_off_;
  bool ended_ = false;
  bool away_ = false;
  int64_t tried_ = 0;
  Clock::time_point left_, when_;  // since when it is away, and when to try again
  double until_ = 0;
  int64_t frames_ = 0;
  int64_t dropped_ = 0;
  int64_t breaks_ = 0;
};

}  // namespace kinora::cli
