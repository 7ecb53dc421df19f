#include "video/decode/frame_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kinora {

FrameStream::FrameStream(std::unique_ptr<Job> job) : job_(std::move(job)) {}
FrameStream::FrameStream(FrameStream&&) noexcept = default;
FrameStream& FrameStream::operator=(FrameStream&&) noexcept = default;
FrameStream::~FrameStream() = default;

std::optional<FrameGroup> FrameStream::next() { return job_->next(); }
FrameSize FrameStream::size() const { return job_->size(); }
ReadReport FrameStream::report() const { return job_->report(); }

MakeConvertFrame make_converter(FrameSize size, ResizeFilter filter, Orientation orientation,
                                bool still) {
  const TargetFrame target{static_cast<int>(size.width), static_cast<int>(size.height), filter,
                           still};
  return [target, orientation]() -> ConvertFrame {
    const auto converter = std::make_shared<FrameConverter>(target, orientation);
    return [converter](const AVFrame& frame, TensorView out) { converter->convert(frame, out); };
  };
}

Orientation orientation_of(const AVFrame& frame) {
  const AVFrameSideData* data = av_frame_get_side_data(&frame, AV_FRAME_DATA_DISPLAYMATRIX);
  if (data == nullptr || data->size < 9 * sizeof(int32_t)) return {};
  return Orientation::from_display_matrix(reinterpret_cast<const int32_t*>(data->data));
}

MakeConvertFrame make_picture_converter(FrameSize size, ResizeFilter filter) {
  return [size, filter]() -> ConvertFrame {
    Orientation last;
    return [size, filter, last, convert = make_converter(size, filter, last, true)()](
               const AVFrame& frame, TensorView out) mutable {
      const Orientation wanted = orientation_of(frame);
      if (!(wanted == last)) convert = make_converter(size, filter, wanted, true)();
      last = wanted;
      convert(frame, out);
    };
  };
}

std::vector<DamagedSpan> join_spans(std::vector<DamagedSpan> spans) {
  std::sort(spans.begin(), spans.end(),
            [](const DamagedSpan& a, const DamagedSpan& b) { return a.from < b.from; });
  std::vector<DamagedSpan> joined;
  for (const DamagedSpan& span : spans) {
    if (joined.empty() || span.from > joined.back().to) {
      joined.push_back(span);
    } else {
      joined.back().to = std::max(joined.back().to, span.to);
      joined.back().lost += span.lost;
    }
  }
  return joined;
}

FrameSize choose_size(const ReadOptions& options, FrameSize source, int64_t frames,
                      const VideoLimits& limits) {
  const FrameSize size = options.target_size ? options.target_size(source, frames) : source;
  const bool possible = size.width > 0 && size.height > 0 && size.width <= limits.max_side &&
                        size.height <= limits.max_side &&
                        size.width * size.height <= limits.max_pixels;
  if (!possible) {
    throw Error(ErrorKind::usage,
                fmt::format("frames of {} × {} cannot be delivered: 1 to {} a "
                            "side and at most {} pixels are possible",
                            size.width, size.height, limits.max_side, limits.max_pixels));
  }
  if (options.frames_per_group < 1) {
    throw Error(ErrorKind::usage, fmt::format("groups of {} frames make no sense: 1 is the least",
                                              options.frames_per_group));
  }
  return size;
}

int choose_threads(const ReadOptions& options) {
  constexpr int most = 256;
  if (options.threads < 0) {
    throw Error(ErrorKind::usage, fmt::format("{} threads make no sense", options.threads));
  }
  const int all = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::min(most, options.threads > 0 ? options.threads : all);
}

GroupRoom choose_group_room(int64_t frames, int64_t groups, FrameSize size,
                            const VideoLimits& limits) {
  const int64_t frame_bytes = std::max<int64_t>(1, size.width * size.height * 3);
  const int64_t affordable = std::max<int64_t>(1, limits.max_queue_bytes / frame_bytes);
  // Two groups, so that one can be filled while the other is taken.
  const int64_t fitting = std::clamp<int64_t>(affordable / 2, 1, frames);
  return {fitting, std::clamp<int64_t>(affordable / fitting, 1, groups)};
}

}  // namespace kinora
