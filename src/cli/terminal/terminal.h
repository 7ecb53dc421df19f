// What the program shows of long steps: one line that is rewritten on a terminal; in a pipe a line
// every ten seconds of work that takes longer.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "cli/terminal/work_progress.h"

namespace kinora::cli {

// "1.2 GiB", "640 KiB"
std::string human_bytes(int64_t bytes);
// "0.42 s", "3 min 05 s"
std::string human_seconds(double seconds);

// The most memory this process has held so far, in bytes.
int64_t peak_memory();

// Standard output is a terminal, or goes where standard error goes: whoever sees progress sees the
// answer grow, and progress would stand in its midst.
bool answer_is_seen();

class TerminalProgress final : public Progress {
 public:
  explicit TerminalProgress(bool quiet);
  ~TerminalProgress() override { clear(); }

  // There is a line on a terminal.
  bool shown() const { return way_ == Way::line; }
  // What is to come, so that one share stands for all of it.
  void expect(std::vector<ExpectedStage> stages);
  void update(std::string_view stage, int64_t done, int64_t total) override;
  // Removes the line, so that other output starts at the left margin, and ends the step.
  void clear();

 private:
  enum class Way { silent, line, reports };
  void draw(const std::string& line);

  const Way way_;
  std::mutex mutex_;
  WorkProgress work_;
  double last_shown_;  // a moment
  size_t width_ = 0;   // of the line on the screen
};

}  // namespace kinora::cli
