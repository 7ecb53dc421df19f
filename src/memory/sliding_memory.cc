// Sinks and a window (StreamingVLM's kind): the first rows of a session and its newest frames are
// read, by questions and by new frames alike. Text is always read.
#include <algorithm>
#include <memory>
#include <vector>

#include "memory/partial/partial_memory.h"
#include "memory/policies.h"

namespace kinora {
namespace {

struct SlidingOptions {
  int64_t rows = 8192;
  int64_t sinks = 16;
  PartialOptions reading{.positions = Placing::consecutive};
};

class NewestRows final : public RowChooser {
 public:
  explicit NewestRows(const SlidingOptions& options) : options_(options) {}

  FrameRows choose(const Context&, int, const StoredRows& rows, const QueryView&) override {
    FrameRows chosen{newest_rows(rows, options_.rows - options_.sinks), {}};
    const int64_t sinks = std::min(options_.sinks, rows.count());
    std::vector<int32_t> first;
    for (int32_t row = 0; row < sinks; ++row) {
      if (rows.token(row).modality != Modality::text) first.push_back(row);
    }
    std::erase_if(first,
                  [&](int32_t row) { return !chosen.rows.empty() && row >= chosen.rows[0]; });
    chosen.rows.insert(chosen.rows.begin(), first.begin(), first.end());
    return chosen;
  }
  std::unique_ptr<RowChooser> clone() const override {
    return std::make_unique<NewestRows>(options_);
  }

 private:
  SlidingOptions options_;
};

}  // namespace

MemoryPolicy sliding_policy() {
  Settings<SlidingOptions> settings;
  settings.count("rows", &SlidingOptions::rows, {1}, "rows of frames that are read in each layer")
      .bare();
  settings.count("sinks", &SlidingOptions::sinks, {},
                 "of these, rows at the very beginning, if they are of frames");
  Settings<PartialOptions> placing(SlidingOptions().reading);
  add_positions(placing);
  add_tiers(placing);
  settings.include(placing, &SlidingOptions::reading);
  MemoryPolicy policy;
  policy.info = {"sliding", "the newest frames only, and the first rows of all", settings.info()};
  policy.make = [settings](std::span<const GivenSetting> given, const MemoryOptions& options) {
    SlidingOptions chosen = settings.read(given);
    chosen.sinks = std::min(chosen.sinks, chosen.rows - 1);
    chosen.reading.rows = chosen.reading.window = chosen.rows;
    return std::make_unique<PartialMemory>(rows_of(options, chosen.reading),
                                           std::make_unique<NewestRows>(chosen), chosen.reading);
  };
  return policy;
}

}  // namespace kinora
