#include "model/families/qwen2_5_vl/positions.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace kinora {
namespace {

class MultimodalPositions final : public PositionCounter {
 public:
  explicit MultimodalPositions(double tokens_per_second) : tokens_per_second_(tokens_per_second) {}

  void text(int64_t count, std::vector<TokenInfo>& out) override {
    within_ = false;
    check(next_ + count);
    for (int64_t i = 0; i < count; ++i) {
      const auto position = static_cast<int32_t>(next_++);
      out.push_back({{position, position, position}, no_time, Modality::text});
    }
  }

  void visual(const VisualPlan& plan, int64_t first, int64_t count, std::span<const double> times,
              bool last, std::vector<TokenInfo>& out) override {
    if (!std::exchange(within_, !last)) {
      begin_ = next_;
      first_unit_ = first;
    }
    const bool moves = plan.source.modality == Modality::video;
    for (int64_t i = 0; i < count; ++i) {
      // In f32 and cut off, as the reference does.
      const float elapsed = static_cast<float>(first + i - first_unit_) *
                            static_cast<float>(plan.seconds_per_unit) *
                            static_cast<float>(tokens_per_second_);
      if (!(elapsed < 0x1p31f)) check(std::numeric_limits<int64_t>::max());
      const int64_t time = moves ? static_cast<int64_t>(elapsed) : 0;
      const int64_t reach = std::max({time + 1, plan.grid.width, plan.grid.height});
      check(begin_ + reach);
      const bool timed = i < static_cast<int64_t>(times.size());
      TokenInfo token;
      token.time = timed ? times[static_cast<size_t>(i)] : no_time;
      token.modality = plan.source.modality;
      for (int64_t row = 0; row < plan.grid.height; ++row) {
        for (int64_t column = 0; column < plan.grid.width; ++column) {
          token.position = {static_cast<int32_t>(begin_ + time), static_cast<int32_t>(begin_ + row),
                            static_cast<int32_t>(begin_ + column)};
          out.push_back(token);
        }
      }
      next_ = std::max(next_, begin_ + reach);
    }
  }

  int64_t next() const override { return next_; }

  std::unique_ptr<PositionCounter> clone() const override {
    return std::make_unique<MultimodalPositions>(*this);
  }

 private:
  static constexpr double no_time = std::numeric_limits<double>::quiet_NaN();

  static void check(int64_t end) {
    if (end > std::numeric_limits<int32_t>::max()) {
      throw Error(ErrorKind::resource, "the conversation is longer than 2^31 positions");
    }
  }

  double tokens_per_second_;
  int64_t next_ = 0;
  bool within_ = false;     // a visual item that has not ended
  int64_t begin_ = 0;       // its position
  int64_t first_unit_ = 0;  // the number of its first unit
};

}  // namespace

std::unique_ptr<PositionCounter> multimodal_positions(double tokens_per_second) {
  return std::make_unique<MultimodalPositions>(tokens_per_second);
}

}  // namespace kinora
