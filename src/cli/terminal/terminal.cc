#include "cli/terminal/terminal.h"
#include "cli/terminal/output.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace kinora::cli {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// In a pipe.
constexpr double report_seconds = 10;

size_t terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

std::string human_bytes(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{:.{}f} {}", value, value < 10 ? 1 : 0, units[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds < 60) return fmt::format("{:.2f} s", seconds);
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

int64_t peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

bool answer_is_seen() {
  if (::isatty(STDOUT_FILENO) == 1) return true;
  struct stat out {};
  struct stat err {};
  return ::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(STDERR_FILENO, &err) == 0 &&
         out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

TerminalProgress::TerminalProgress(bool quiet)
    : way_(quiet                          ? Way::silent
           : ::isatty(STDERR_FILENO) == 1 ? Way::line
                                          : Way::reports),
      last_shown_(way_ == Way::reports ? now() : 0) {}

void TerminalProgress::expect(std::vector<ExpectedStage> stages) {
  const std::lock_guard lock(mutex_);
  work_.expect(std::move(stages));
}

void TerminalProgress::update(std::string_view stage, int64_t done, int64_t total) {
  if (way_ == Way::silent) return;
  const std::lock_guard lock(mutex_);
  const double moment = now();
  const bool first = work_.update(stage, done, total, moment);
  // Ten lines a second are enough for eyes; the first and the last one of a stage must not be lost.
  const double pause = way_ == Way::line ? 0.1 : report_seconds;
  const bool end = way_ == Way::line && (first || (total > 0 && done == total));
  if (moment - last_shown_ < pause && !end) return;
  last_shown_ = moment;
  if (way_ == Way::line) {
    draw(work_.text(terminal_columns() - 1));
  } else {
    remark("{}\n", work_.text(std::string::npos));
  }
}

void TerminalProgress::draw(const std::string& line) {
  const size_t blank = width_ > line.size() ? width_ - line.size() : 0;
  remark("\r{}{:{}}", line, "", blank);
  std::fflush(stderr);
  width_ = line.size();
}

void TerminalProgress::clear() {
  const std::lock_guard lock(mutex_);
  work_ = WorkProgress();
  if (way_ == Way::line) last_shown_ = 0;
  if (width_ == 0) return;
  remark("\r{:{}}\r", "", width_);
  std::fflush(stderr);
  width_ = 0;
}

}  // namespace kinora::cli
