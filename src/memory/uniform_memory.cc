// The plainest control: a question reads evenly chosen frames.
#include <algorithm>
#include <memory>
#include <vector>

#include "memory/partial/partial_memory.h"
#include "memory/policies.h"

namespace kinora {
namespace {

class EvenFrames final : public RowChooser {
 public:
  explicit EvenFrames(int64_t most) : most_(most) {}

  FrameRows choose(const Context&, int, const StoredRows& rows, const QueryView&) override {
    const auto frames = rows.frames().frames_before(rows.first_token());
    const auto total = static_cast<int64_t>(frames.size());
    const auto frame_at = [&](int64_t i, int64_t count) -> const Frame& {
      return frames[static_cast<size_t>((2 * i + 1) * total / (2 * count))];
    };
    // The most frames that fit; of a single one that does not, the first rows.
    int64_t count = std::min(total, most_);
    const auto needed = [&] {
      int64_t sum = 0;
      for (int64_t i = 0; i < count; ++i) {
        const auto [begin, end] = rows.rows_of(frame_at(i, count));
        sum += end - begin;
      }
      return sum;
    };
    for (int64_t sum = needed(); count > 1 && sum > most_; sum = needed()) {
      count = std::clamp<int64_t>(count * most_ / sum, 1, count - 1);
    }
    FrameRows chosen;
    for (int64_t i = 0; i < count; ++i) {
      const auto [begin, end] = rows.rows_of(frame_at(i, count));
      const auto room = most_ - static_cast<int64_t>(chosen.rows.size());
      for (int64_t row = begin; row < std::min(end, begin + room); ++row) {
        chosen.rows.push_back(static_cast<int32_t>(row));
      }
    }
    return chosen;
  }
  std::unique_ptr<RowChooser> clone() const override { return std::make_unique<EvenFrames>(most_); }

 private:
  int64_t most_;
};

}  // namespace

MemoryPolicy uniform_policy() {
  Settings<PartialOptions> settings;
  add_rows(settings);
  add_window(settings);
  add_positions(settings);
  add_tiers(settings);
  MemoryPolicy policy;
  policy.info = {"uniform", "a question reads evenly chosen frames", settings.info()};
  policy.make = [settings](std::span<const GivenSetting> given, const MemoryOptions& options) {
    const PartialOptions chosen = settings.read(given);
    return std::make_unique<PartialMemory>(rows_of(options, chosen),
                                           std::make_unique<EvenFrames>(chosen.rows), chosen);
  };
  return policy;
}

}  // namespace kinora
