#include "video/decode/interval_source.h"

#include <limits>
#include <utility>

namespace kinora {

IntervalSource::IntervalSource(const ReadPlan& plan, std::unique_ptr<PacketFeed> feed,
                               int64_t bytes)
    : plan_(plan), feed_(std::move(feed)), most_bytes_(bytes), taken_(plan.intervals.size()) {}

size_t IntervalSource::choose(int64_t samples_open) const {
  size_t best = first_;
  int64_t aside = waiting_bytes_;  // that would wait if this one were taken
  for (size_t i = first_ + 1; i < taken_.size(); ++i) {
    const KeyframeInterval& interval = plan_.intervals[i];
    if (i > unread_) aside += plan_.intervals[i - 1].bytes;
    if (interval.samples_end > samples_open || aside > most_bytes_) break;
    if (!taken_[i] && interval.begin_at < plan_.intervals[best].begin_at) best = i;
  }
  return best;
}

int64_t IntervalSource::begin_after(size_t number) const {
  return number + 1 < plan_.intervals.size() ? plan_.intervals[number + 1].begin
                                             : std::numeric_limits<int64_t>::max();
}

IntervalSource::Work IntervalSource::read(size_t number, int64_t bytes) {
  const KeyframeInterval& interval = plan_.intervals[number];
  Work work{number, {}, interval.begin, nullptr};
  work.packets = feed_->read(interval, work.from, begin_after(number), bytes);
  work.parameters = &feed_->parameters();
  unread_ = number + 1;
  return work;
}

std::optional<IntervalSource::Work> IntervalSource::take(int64_t samples_open) {
  while (first_ < taken_.size() && taken_[first_]) ++first_;
  if (first_ == taken_.size()) return std::nullopt;
  const size_t number = choose(samples_open);
  taken_[number] = true;
  if (const auto place = waiting_.find(number); place != waiting_.end()) {
    Work work = std::move(place->second);
    waiting_.erase(place);
    waiting_bytes_ -= plan_.intervals[number].bytes;
    return work;
  }
  while (unread_ < number) {
    Work work = read(unread_, std::numeric_limits<int64_t>::max());
    waiting_bytes_ += plan_.intervals[work.number].bytes;
    waiting_.emplace(work.number, std::move(work));
  }
  return read(number, most_bytes_);
}

void IntervalSource::read_on(Work& work) {
  work.packets =
      feed_->read(plan_.intervals[work.number], work.from, begin_after(work.number), most_bytes_);
}

}  // namespace kinora
