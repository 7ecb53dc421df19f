#include "cli/terminal.h"
#include "cli/output.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace kinora::cli {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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

std::string progress_text(const std::vector<StageProgress>& stages, double elapsed) {
  const auto unit_of = [](const StageProgress& stage) {
    return stage.name == "decode" ? " frames" : stage.name == "prefill" ? " tokens" : "";
  };
  const auto in_bytes = [](const StageProgress& stage) { return stage.name == "download"; };
  std::string text;
  for (const StageProgress& stage : stages) {
    if (!text.empty()) text += ", ";
    if (in_bytes(stage)) {
      text +=
          fmt::format("{} {} of {}", stage.name, human_bytes(stage.done), human_bytes(stage.total));
      continue;
    }
    text += fmt::format("{} {}", stage.name, stage.done);
    if (stage.total > 0) text += fmt::format("/{}{}", stage.total, unit_of(stage));
  }
  if (stages.empty() || stages.back().done <= stages.back().first || elapsed < 0.5) return text;
  const StageProgress& last = stages.back();
  const double rate = static_cast<double>(last.done - last.first) / elapsed;
  text += in_bytes(last) ? fmt::format(", {}/s", human_bytes(static_cast<int64_t>(rate)))
                         : fmt::format(", {:.{}f}{}/s", rate, rate < 10 ? 1 : 0, unit_of(last));
  if (last.total > last.done) {
    const double left = static_cast<double>(last.total - last.done) / rate;
    text += left < 60 ? fmt::format(", {:.0f} s left", left)
                      : fmt::format(", {} left", human_seconds(left));
  }
  return text;
}

int64_t peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

TerminalProgress::TerminalProgress(bool quiet) : shown_(!quiet && ::isatty(STDERR_FILENO) == 1) {}

void TerminalProgress::update(std::string_view stage, int64_t done, int64_t total) {
  if (!shown_) return;
  const std::lock_guard lock(mutex_);
  auto found = std::find_if(stages_.begin(), stages_.end(),
                            [&](const StageProgress& known) { return known.name == stage; });
  if (stages_.empty()) begun_ = now();
  const bool first = found == stages_.end();
  if (first) {
    const int64_t before = stage == "download" ? done : 0;
    found = stages_.insert(stages_.end(), StageProgress{std::string(stage), 0, 0, before});
  }
  found->done = done;
  found->total = total;
  // Ten lines a second are enough for eyes; the first and the last one of a stage must not be lost.
  if (now() - last_drawn_ < 0.1 && done != total && !first) return;
  last_drawn_ = now();
  std::string line = progress_text(stages_, last_drawn_ - begun_);
  line.resize(std::min(line.size(), terminal_columns() - 1));
  const size_t blank = width_ > line.size() ? width_ - line.size() : 0;
  remark("\r{}{:{}}", line, "", blank);
  std::fflush(stderr);
  width_ = line.size();
}

void TerminalProgress::clear() {
  const std::lock_guard lock(mutex_);
  if (width_ == 0) return;
  remark("\r{:{}}\r", "", width_);
  std::fflush(stderr);
  width_ = 0;
  stages_.clear();
}

}  // namespace kinora::cli
