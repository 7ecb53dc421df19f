// Plays a file as if it were filmed now: units are handed out when their last frame would have been
// seen, at a multiple of the speed it was filmed at.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "base/cancel.h"
#include "engine/ingest/unit_source.h"

namespace kinora {

class PacedUnits final : public UnitSource {
 public:
  PacedUnits(std::unique_ptr<UnitSource> units, double speed, CancelToken stop);

  std::optional<Units> next() override;
  ReadReport report() const override { return units_->report(); }

 private:
  std::unique_ptr<UnitSource> units_;
  const double speed_;
  const CancelToken stop_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace kinora
