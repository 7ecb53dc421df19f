#include "engine/ingest/paced_units.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace kinora {

PacedUnits::PacedUnits(std::unique_ptr<UnitSource> units, double speed, CancelToken stop)
    : units_(std::move(units)), speed_(speed), stop_(std::move(stop)) {}

std::optional<Units> PacedUnits::next() {
  using Clock = std::chrono::steady_clock;
  std::optional<Units> units = units_->next();
  if (!units || units->frames.times.empty()) return units;
  const std::chrono::duration<double> due(units->frames.times.back() / speed_);
  const auto when = began_ + std::chrono::duration_cast<Clock::duration>(due);
  constexpr auto glance = std::chrono::milliseconds(20);  // whether it should stop
  while (Clock::now() < when) {
    stop_.check();
    std::this_thread::sleep_until(std::min<Clock::time_point>(when, Clock::now() + glance));
  }
  return units;
}

}  // namespace kinora
