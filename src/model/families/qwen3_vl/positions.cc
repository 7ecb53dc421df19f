#include "model/families/qwen3_vl/positions.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace kinora {
namespace {

class UnitPositions final : public PositionCounter {
 public:
  void text(int64_t count, std::vector<TokenInfo>& out) override {
    check(next_ + count);
    for (int64_t i = 0; i < count; ++i) {
      const auto position = static_cast<int32_t>(next_++);
      out.push_back({{position, position, position}, no_time, Modality::text});
    }
  }

  void visual(const VisualPlan& plan, int64_t, int64_t count, std::span<const double> times, bool,
              std::vector<TokenInfo>& out) override {
    const int64_t reach = std::max(plan.grid.width, plan.grid.height);
    for (int64_t i = 0; i < count; ++i) {
      check(next_ + reach);
      TokenInfo token;
      token.time = i < static_cast<int64_t>(times.size()) ? times[static_cast<size_t>(i)] : no_time;
      token.modality = plan.source.modality;
      for (int64_t row = 0; row < plan.grid.height; ++row) {
        for (int64_t column = 0; column < plan.grid.width; ++column) {
          token.position = {static_cast<int32_t>(next_), static_cast<int32_t>(next_ + row),
                            static_cast<int32_t>(next_ + column)};
          out.push_back(token);
        }
      }
      next_ += reach;
    }
  }

  int64_t next() const override { return next_; }

  std::unique_ptr<PositionCounter> clone() const override {
    return std::make_unique<UnitPositions>(*this);
  }

 private:
  static constexpr double no_time = std::numeric_limits<double>::quiet_NaN();

  static void check(int64_t end) {
    if (end > std::numeric_limits<int32_t>::max()) {
      throw Error(ErrorKind::resource, "the conversation is longer than 2^31 positions");
    }
  }

  int64_t next_ = 0;
};

}  // namespace

std::unique_ptr<PositionCounter> unit_positions() { return std::make_unique<UnitPositions>(); }

}  // namespace kinora
