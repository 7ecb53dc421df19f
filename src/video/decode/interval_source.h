// Hands intervals and their packets to workers: each in the order in which it should begin, read in
// the order of the file. Packets of intervals that are passed over wait here. Whoever shares one
// among workers locks it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "video/decode/interval_plan.h"
#include "video/decode/packet_feed.h"

namespace kinora {

class IntervalSource {
 public:
  // Compressed bytes that one worker takes at a time, and that may wait here. An interval beyond
  // this keeps the source until it is read; one that long leaves little to do in parallel anyway.
  static constexpr int64_t most_bytes = int64_t{32} << 20;

  // The plan must outlive it.
  IntervalSource(const ReadPlan& plan, std::unique_ptr<PacketFeed> feed,
                 int64_t bytes = most_bytes);

  struct Work {
    size_t number = 0;  // of the interval
    std::vector<NumberedPacket> packets;
    int64_t from = 0;  // first packet not yet read; beyond the interval's end when complete
    const AVCodecParameters* parameters = nullptr;  // live as long as the source
  };
  // The interval to begin now: the first that is left or, among those whose samples are all below
  // `samples_open`, one that should begin earlier. Nothing when none is left.
  std::optional<Work> take(int64_t samples_open);
  // The next packets of an incomplete interval; before anything else is taken.
  void read_on(Work& work);

  int64_t seeks() const { return feed_->seeks(); }

 private:
  size_t choose(int64_t samples_open) const;
  Work read(size_t number, int64_t bytes);
  int64_t begin_after(size_t number) const;

  const ReadPlan& plan_;
  std::unique_ptr<PacketFeed> feed_;
  const int64_t most_bytes_;
  std::vector<bool> taken_;
  size_t first_ = 0;                // not taken
  size_t unread_ = 0;               // from here on nothing has been read
  std::map<size_t, Work> waiting_;  // read, not taken
  int64_t waiting_bytes_ = 0;
};

}  // namespace kinora
