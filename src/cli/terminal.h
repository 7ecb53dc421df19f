// What the program shows of long steps: one line that is rewritten on a terminal, nothing in a
// pipe.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"

namespace kinora::cli {

// "1.2 GiB", "640 KiB"
std::string human_bytes(int64_t bytes);
// "0.42 s", "3 min 05 s"
std::string human_seconds(double seconds);

// One stage of a long step as a progress line shows it.
struct StageProgress {
  std::string name;
  int64_t done = 0;
  int64_t total = 0;  // 0 while it is not known
  int64_t first = 0;  // done when it was first heard of, which says nothing about its rate
};

// "decode 45/120 frames, prefill 812/3629 tokens, 410 tokens/s, 7 s left": the stages, then the
// rate of the last of them and the time it still needs at that rate. Downloads count in bytes.
// `elapsed` is in seconds.
std::string progress_text(const std::vector<StageProgress>& stages, double elapsed);

// The most memory this process has held so far, in bytes.
int64_t peak_memory();

class TerminalProgress final : public Progress {
 public:
  // Silent unless standard error is a terminal and `quiet` is false.
  explicit TerminalProgress(bool quiet);
  ~TerminalProgress() override { clear(); }

  bool shown() const { return shown_; }
  void update(std::string_view stage, int64_t done, int64_t total) override;
  // Removes the line, so that other output starts at the left margin.
  void clear();

 private:
  const bool shown_;
  std::mutex mutex_;
  std::vector<StageProgress> stages_;
  double begun_ = 0;
  double last_drawn_ = 0;
  size_t width_ = 0;  // of the line on the screen
};

}  // namespace kinora::cli
