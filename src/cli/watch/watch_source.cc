#include "cli/watch/watch_source.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "cli/error_text.h"

namespace kinora::cli {
namespace {

constexpr double longest_pause = 60;
// Frames taken in before others get their turn.
constexpr int64_t frames_at_once = 64;

std::string_view scheme_of(std::string_view source) {
  const size_t end = source.find("://");
  return end == std::string_view::npos ? "" : source.substr(0, end);
}

bool is_address(std::string_view source) { return !scheme_of(source).empty(); }

}  // namespace

double BackOff::next() {
  seconds_ = seconds_ == 0 ? 1 : std::min(longest_pause, 2 * seconds_);
  return seconds_;
}

bool may_come_back(const std::string& source) {
  const std::string_view scheme = scheme_of(source);
  return is_address(source) && scheme != "http" && scheme != "https" && scheme != "ftp";
}

WatchSource::WatchSource(Session& session, std::string source, int64_t tries, WatchEvents events)
    : session_(session), source_(std::move(source)), tries_(tries), events_(std::move(events)) {}

InputInfo WatchSource::open(InputOptions options) {
  options.resumes = is_address(source_);
  return session_.open(source_, options);
}

void WatchSource::break_off(const std::string& why) {
  if (!away_) {
    left_ = Clock::now();
    away_ = true;
    ++breaks_;
  }
  const double pause = back_off_.next();
  when_ = Clock::now() +
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(pause));
  events_.broke(why, pause);
}

bool WatchSource::try_again(const CancelToken& cancel) {
  if (Clock::now() < when_) return false;
  ++tried_;
  try {
    session_.resume(cancel);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::cancelled) throw;
    ended_ = tries_ >= 0 && tried_ >= tries_;
    if (ended_) throw;
    break_off(error_text(error));
    return true;
  }
  away_ = false;
  events_.back(std::chrono::duration<double>(Clock::now() - left_).count());
  return true;
}

bool WatchSource::step(const CancelToken& cancel) {
  if (ended_) return false;
  if (away_) return try_again(cancel);
  TakenIn taken;
  try {
    taken = session_.take_in(0, cancel, frames_at_once);
  } catch (const Error& error) {
    const bool broken = error.kind() == ErrorKind::network || error.kind() == ErrorKind::bad_input;
    if (!is_address(source_) || !broken || tries_ == 0) {
      ended_ = error.kind() != ErrorKind::cancelled;
      throw;
    }
    break_off(error_text(error));
    return true;
  }
  for (const std::string& warning : taken.warnings) events_.warn(warning);
  frames_ += taken.frames;
  dropped_ += taken.dropped;
  if (taken.frames > 0) {
    until_ = taken.until;
    back_off_.reset();
    tried_ = 0;
  }
  if (taken.ended && may_come_back(source_) && tries_ != 0) {
    break_off("it ended");
  } else {
    ended_ = taken.ended;
  }
  return taken.frames > 0 || taken.ended;
}

}  // namespace kinora::cli
