#include "engine/ingest/unit_stream.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace kinora {
namespace {

FrameStream start(VisualInput& input, ReadOptions options, int64_t frames_per_group) {
  const Size size = input.plan.frame_size;
  options.target_size = [size](FrameSize, int64_t) { return FrameSize{size.width, size.height}; };
  options.filter = input.plan.filter;
  options.frames_per_group = frames_per_group;
  return input.video->read(input.samples, options);
}

}  // namespace

UnitStream::UnitStream(VisualInput& input, ReadOptions options, int64_t frames_per_group)
    : input_(input),
      frames_per_group_(whole_units(frames_per_group, input.plan.frames_per_unit)),
      stream_(start(input, std::move(options), frames_per_group_)) {}

bool UnitStream::is_exactly(const FrameGroup& group, int64_t wanted) const {
  if (group.frames() != wanted) return false;
  for (int64_t i = 0; i < wanted; ++i) {
    const auto sample = static_cast<size_t>(delivered_ + i);
    if (group.index[static_cast<size_t>(i)] != input_.samples[sample].index) return false;
  }
  return true;
}

FrameGroup UnitStream::assemble(int64_t wanted) {
  const Size size = input_.plan.frame_size;
  FrameGroup out;
  out.pixels = Tensor(DType::u8, {wanted, size.height, size.width, 3});
  for (int64_t i = 0; i < wanted; ++i) {
    const SampledFrame& sample = input_.samples[static_cast<size_t>(delivered_ + i)];
    const bool arrived = !waiting_.empty() && waiting_.front().index == sample.index;
    if (arrived) {
      previous_ = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (!previous_ && waiting_.empty()) {
      throw Error(ErrorKind::bad_input,
                  "no sampled frame of " + input_.source + " could be decoded");
    }
    const Frame& frame = previous_ ? *previous_ : waiting_.front();
    const ConstTensorView source = ConstTensorView(frame.group)[frame.row];
    std::memcpy(out.pixels.view()[i].raw(), source.raw(), static_cast<size_t>(source.bytes()));
    out.index.push_back(sample.index);
    out.times.push_back(sample.time);
  }
  return out;
}

std::optional<Units> UnitStream::next() {
  const auto total = static_cast<int64_t>(input_.samples.size());
  if (delivered_ == total) {
    while (!ended_) ended_ = !stream_.next();  // only then is the report complete
    return std::nullopt;
  }
  const int64_t wanted = std::min(frames_per_group_, total - delivered_);
  Units units;
  while (static_cast<int64_t>(waiting_.size()) < wanted && !ended_) {
    std::optional<FrameGroup> group = stream_.next();
    if (!group) {
      ended_ = true;
    } else if (waiting_.empty() && is_exactly(*group, wanted)) {
      units.frames = std::move(*group);
      break;
    } else {
      for (int64_t row = 0; row < group->frames(); ++row) {
        waiting_.push_back({group->index[static_cast<size_t>(row)], group->pixels, row});
      }
    }
  }
  if (units.frames.frames() > 0) {
    previous_ = Frame{units.frames.index.back(), units.frames.pixels, wanted - 1};
  } else {
    units.frames = assemble(wanted);
  }
  const int64_t unit = input_.plan.frames_per_unit;
  units.first = delivered_ / unit;
  units.count = (wanted + unit - 1) / unit;
  for (int64_t i = 0; i < wanted; i += unit) {
    units.times.push_back(units.frames.times[static_cast<size_t>(i)]);
  }
  delivered_ += wanted;
  units.last = delivered_ == total;
  return units;
}

}  // namespace kinora
