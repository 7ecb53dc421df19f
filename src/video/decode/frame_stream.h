// The inside of FrameStream: one job per read. Indexed sources decode in parallel, live ones as
// they come.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "video/convert/convert.h"
#include "video/decode/frame_queue.h"
#include "video/decode/interval_plan.h"
#include "video/decode/packet_feed.h"
#include "video/video.h"

namespace kinora {

class FrameStream::Job {
 public:
  virtual ~Job() = default;
  virtual std::optional<FrameGroup> next() = 0;
  virtual FrameSize size() const = 0;
  virtual ReadReport report() const = 0;
};

// Writes a decoded picture into its place; every worker has one of its own. Tests put the plain
// planes there instead of converted pixels.
using ConvertFrame = std::function<void(const AVFrame& frame, TensorView out)>;
using MakeConvertFrame = std::function<ConvertFrame()>;

// `still`: a picture, whose chroma is interpolated.
MakeConvertFrame make_converter(FrameSize size, ResizeFilter filter, Orientation orientation,
                                bool still = false);
// For pictures that each know how they are to be turned.
MakeConvertFrame make_picture_converter(FrameSize size, ResizeFilter filter);
// From the picture itself, as photographs have it; upright where it says nothing.
Orientation orientation_of(const AVFrame& frame);

// Spans in order, those that touch joined.
std::vector<DamagedSpan> join_spans(std::vector<DamagedSpan> spans);

struct ParallelRead {
  std::shared_ptr<const VideoIndex> index;
  std::vector<SampledFrame> samples;
  FrameSize size;  // of the delivered frames
  std::function<std::unique_ptr<PacketFeed>(const CancelToken& stop)> open_feed;
  MakeConvertFrame make_convert;
  VideoLimits limits;
  ReadOptions options;
  bool stills = false;  // every packet is a picture of its own
};

std::unique_ptr<FrameStream::Job> start_parallel_read(ParallelRead read);

// Checks what a caller asks for and works out the size of the frames.
FrameSize choose_size(const ReadOptions& options, FrameSize source, int64_t frames,
                      const VideoLimits& limits);
int choose_threads(const ReadOptions& options);
// Groups as they may be, so that those that wait to be taken stay below the limit in bytes whatever
// the size of a frame: fewer groups, then smaller ones. One frame always fits.
struct GroupRoom {
  int64_t frames = 1;  // of a group
  int64_t groups = 1;  // at once
};
GroupRoom choose_group_room(int64_t frames, int64_t groups, FrameSize size,
                            const VideoLimits& limits);

}  // namespace kinora
