#include "model/sequential_positions.h"

#include <limits>

#include "base/error.h"

namespace kinora {
namespace {

class SequentialPositions final : public PositionCounter {
 public:
  void text(int64_t count, std::vector<TokenInfo>& out) override {
    append(count, std::numeric_limits<double>::quiet_NaN(), Modality::text, out);
  }

  void visual(const VisualPlan& plan, int64_t /*first*/, int64_t count,
              std::span<const double> times, bool last, std::vector<TokenInfo>& out) override {
    double time = std::numeric_limits<double>::quiet_NaN();
    for (int64_t unit = 0; unit < count; ++unit) {
      if (unit < static_cast<int64_t>(times.size())) time = times[static_cast<size_t>(unit)];
      append(plan.tokens_per_unit, time, plan.source.modality, out);
    }
    if (last) append(plan.trailing_tokens, time, plan.source.modality, out);
  }

  int64_t next() const override { return next_; }

  std::unique_ptr<PositionCounter> clone() const override {
    return std::make_unique<SequentialPositions>(*this);
  }

 private:
  void append(int64_t count, double time, Modality modality, std::vector<TokenInfo>& out) {
    if (count > std::numeric_limits<int32_t>::max() - next_) {
      throw Error(ErrorKind::resource, "the conversation is longer than 2^31 tokens");
    }
    for (int64_t i = 0; i < count; ++i) {
      const auto position = static_cast<int32_t>(next_++);
      out.push_back({{position, position, position}, time, modality});
    }
  }

  int64_t next_ = 0;
};

}  // namespace

std::unique_ptr<PositionCounter> sequential_positions() {
  return std::make_unique<SequentialPositions>();
}

}  // namespace kinora
