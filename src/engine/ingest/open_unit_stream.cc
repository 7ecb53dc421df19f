#include "engine/ingest/open_unit_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kinora {

UnitAssembler::UnitAssembler(int64_t frames_per_unit, int64_t frames_per_group, bool closes)
    : frames_per_unit_(frames_per_unit),
      frames_per_group_(whole_units(frames_per_group, frames_per_unit)),
      closes_(closes) {}

void UnitAssembler::end() {
  ended_ = true;
  const int64_t over = frames_ % frames_per_unit_;
  if (closes_ || over == 0) return;
  const FrameGroup& from = waiting_.back();
  const ConstTensorView last = from.pixels.view()[from.frames() - 1];
  FrameGroup filling;
  filling.pixels = Tensor(DType::u8, {frames_per_unit_ - over, from.height(), from.width(), 3});
  for (int64_t i = 0; i < filling.frames(); ++i) {
    std::memcpy(filling.pixels.view()[i].raw(), last.raw(), static_cast<size_t>(last.bytes()));
    filling.times.push_back(from.times.back());
    filling.index.push_back(from.index.back());
  }
  add(std::move(filling));
}

void UnitAssembler::add(FrameGroup frames) {
  if (frames.frames() == 0) return;
  frames_ += frames.frames();
  waiting_.push_back(std::move(frames));
}

FrameGroup UnitAssembler::take(int64_t frames) {
  frames_ -= frames;
  if (used_ == 0 && frames > 0 && waiting_.front().frames() == frames) {
    FrameGroup whole = std::move(waiting_.front());
    waiting_.pop_front();
    return whole;
  }
  FrameGroup out;
  if (frames == 0) return out;
  const FrameGroup& first = waiting_.front();
  out.pixels = Tensor(DType::u8, {frames, first.height(), first.width(), 3});
  for (int64_t done = 0; done < frames;) {
    const FrameGroup& group = waiting_.front();
    const int64_t count = std::min(frames - done, group.frames() - used_);
    const ConstTensorView rows = group.pixels.view().rows(used_, count);
    std::memcpy(out.pixels.view()[done].raw(), rows.raw(), static_cast<size_t>(rows.bytes()));
    const auto begin = static_cast<std::ptrdiff_t>(used_), end = begin + count;
    out.times.insert(out.times.end(), group.times.begin() + begin, group.times.begin() + end);
    out.index.insert(out.index.end(), group.index.begin() + begin, group.index.begin() + end);
    done += count;
    used_ += count;
    if (used_ < group.frames()) continue;
    waiting_.pop_front();
    used_ = 0;
  }
  return out;
}

std::optional<Units> UnitAssembler::next() {
  if (closed_ || (!ended_ && frames_ < frames_per_group_)) return std::nullopt;
  if (!closes_ && frames_ == 0) {
    closed_ = true;
    return std::nullopt;
  }
  Units units;
  units.first = units_;
  units.frames = take(std::min(frames_, frames_per_group_));
  const auto taken = static_cast<int64_t>(units.frames.times.size());
  for (int64_t i = 0; i < taken; i += frames_per_unit_) {
    units.times.push_back(units.frames.times[static_cast<size_t>(i)]);
  }
  units.count = static_cast<int64_t>(units.times.size());
  units_ += units.count;
  closed_ = ended_ && frames_ == 0;
  units.last = closed_ && closes_;
  return units;
}

OpenUnitStream::OpenUnitStream(FrameStream frames, const VisualPlan& plan, int64_t frames_per_group,
                               bool closes)
    : frames_(std::move(frames)), units_(plan.frames_per_unit, frames_per_group, closes) {}

std::optional<Units> OpenUnitStream::next() {
  while (true) {
    if (std::optional<Units> units = units_.next()) return units;
    std::optional<FrameGroup> group = frames_.next();
    if (group) {
      units_.add(std::move(*group));
    } else if (std::exchange(ended_, true)) {
      return std::nullopt;
    } else {
      units_.end();
    }
  }
}

}  // namespace kinora
