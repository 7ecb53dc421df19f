#include "cli/terminal/work_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/terminal/terminal.h"

namespace kinora::cli {
namespace {

// A share of the work after which the time it took tells more than the forecast.
constexpr double trusted_share = 0.3;
// Seconds in which the time left follows a new estimate; sooner where less than that is left.
constexpr double following_seconds = 2;
// How much the time left may change in a second, beyond that second itself, as a share of the
// forecast: when the forecast was far off, the time left moves in steps that can be read.
constexpr double largest_change = 0.5;
// Nothing is said about the time left before this has passed, or about a rest this short.
constexpr double least_seconds = 0.5;

const char* unit_of(std::string_view stage) {
  if (stage == "decode" || stage == "vision") return " frames";
  return stage == "prefill" || stage == "answer" ? " tokens" : "";
}

}  // namespace

std::string rough_seconds(double seconds) {
  const auto in_steps = [&](int64_t step) {
    return static_cast<int64_t>(std::ceil(seconds / static_cast<double>(step))) * step;
  };
  if (seconds <= 10) return fmt::format("{} s", std::max<int64_t>(1, in_steps(1)));
  if (seconds <= 55) return fmt::format("{} s", in_steps(5));
  if (seconds <= 590) {
    const int64_t whole = in_steps(10);
    return whole % 60 == 0 ? fmt::format("{} min", whole / 60)
                           : fmt::format("{} min {:02} s", whole / 60, whole % 60);
  }
  const int64_t minutes = in_steps(60) / 60;
  return minutes < 60 ? fmt::format("{} min", minutes)
                      : fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
}

double WorkProgress::Stage::part() const {
  const int64_t all = total > 0 ? total : expected_total;
  if (all <= first) return total > 0 && done >= total ? 1 : 0;
  return std::clamp(static_cast<double>(done - first) / static_cast<double>(all - first), 0.0, 1.0);
}

std::string WorkProgress::Stage::text() const {
  if (name == "download") {
    std::string text = fmt::format("{} {}", name, human_bytes(done));
    if (total > 0) text += " of " + human_bytes(total);  // unknown of a pipe
    const double elapsed = last - begun;
    if (done > first && elapsed >= least_seconds) {
      const double rate = static_cast<double>(done - first) / elapsed;
      text += fmt::format(", {}/s", human_bytes(static_cast<int64_t>(rate)));
    }
    return text;
  }
  if (total > 0) return fmt::format("{} {}/{}{}", name, done, total, unit_of(name));
  return done > 0 ? fmt::format("{} {}{}", name, done, unit_of(name)) : name;
}

void WorkProgress::expect(std::vector<ExpectedStage> stages) {
  *this = WorkProgress();
  expected_ = !stages.empty();
  for (ExpectedStage& stage : stages) {
    stages_.emplace_back();
    stages_.back().name = std::move(stage.name);
    stages_.back().seconds = std::max(0.0, stage.seconds);
    stages_.back().expected_total = stage.total;
  }
}

WorkProgress::Stage& WorkProgress::find(std::string_view name, int64_t done, double now) {
  auto found = std::find_if(stages_.begin(), stages_.end(),
                            [&](const Stage& stage) { return stage.name == name; });
  if (found == stages_.end()) {
    found = stages_.insert(stages_.end(), Stage{});
    found->name = name;
  }
  if (!found->heard) {
    found->heard = true;
    found->begun = now;
    if (name == "download") found->first = done;
    if (!expected_) {
      newest_ = name;
      begun_ = last_ = now;
      left_.reset();
    }
  }
  return *found;
}

bool WorkProgress::update(std::string_view name, int64_t done, int64_t total, double now) {
  if (!begun_known_) {
    begun_known_ = true;
    begun_ = last_ = now;
  }
  const auto known =
      std::count_if(stages_.begin(), stages_.end(), [](const Stage& stage) { return stage.heard; });
  Stage& stage = find(name, done, now);
  stage.done = done;
  stage.total = total;
  stage.last = now;
  estimate(now);
  return known < std::count_if(
                     stages_.begin(), stages_.end(), [](const Stage& one) { return one.heard; });
}

std::optional<double> WorkProgress::share() const {
  if (!expected_) {
    const auto found = std::find_if(stages_.begin(), stages_.end(),
                                    [&](const Stage& stage) { return stage.name == newest_; });
    if (found == stages_.end() || found->total <= 0) return std::nullopt;
    return found->part();
  }
  double done = 0, all = 0, later = 0;
  for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
    // What a later stage has worked on has been through the earlier ones.
    later = std::max(later, stage->part());
    done += later * stage->seconds;
    all += stage->seconds;
  }
  if (!(all > 0)) return std::nullopt;
  return done / all;
}

void WorkProgress::estimate(double now) {
  const std::optional<double> done = share();
  const double elapsed = now - begun_;
  const double since = std::max(0.0, now - std::exchange(last_, now));
  if (!done) return;
  double forecast = 0;
  for (const Stage& stage : stages_) forecast += stage.seconds;
  double left = 0;
  if (expected_) {
    const double trust = std::min(1.0, *done / trusted_share);
    const double by_pace = *done > 0 ? elapsed / *done : 0;
    const double total = (1 - trust) * std::max(forecast, elapsed) + trust * by_pace;
    left = std::max(total - elapsed, (1 - *done) * forecast * (1 - trust));
  } else {
    if (elapsed < least_seconds || *done <= 0) return;
    left = elapsed / *done - elapsed;
  }
  if (!left_) {
    left_ = left;
    return;
  }
  left_ = std::max(0.0, *left_ - since);
  const double following = std::clamp(left, least_seconds, following_seconds);
  const double change = (left - *left_) * (1 - std::exp(-since / following));
  const double most = expected_ ? largest_change * forecast * since : std::abs(change);
  *left_ += std::clamp(change, -most, most);
}

std::string WorkProgress::text(size_t columns) const {
  std::vector<std::string> parts;
  const std::optional<double> done = share();
  if (done) parts.push_back(fmt::format("{:.0f} %", std::floor(100 * *done)));
  if (done && *done < 1 && left_ && *left_ > least_seconds) {
    parts.push_back(rough_seconds(*left_) + " left");
  }
  // What is still being worked on says more than what is finished.
  for (const bool finished : {false, true}) {
    for (const Stage& stage : stages_) {
      if (!stage.heard || (stage.total > 0 && stage.done >= stage.total) != finished) continue;
      if (!expected_ && stage.name != newest_ && finished) continue;
      parts.push_back(stage.text());
    }
  }
  std::string text;
  for (const std::string& part : parts) {
    const std::string longer = text.empty() ? part : text + ", " + part;
    if (longer.size() > columns) break;
    text = longer;
  }
  return text;
}

}  // namespace kinora::cli
