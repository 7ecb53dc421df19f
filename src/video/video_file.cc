// The public face of video/.
#include <fmt/format.h>
#include <kinora/video.h>

#include "video/video.h"

namespace kinora {

namespace {

constexpr double default_fps = 2;

FrameChoice choice_of(const FrameRequest& request) {
  FrameChoice choice = request.frames;
  if (choice.way == FrameChoice::Way::model) {
    choice.way = FrameChoice::Way::rate;
    choice.fps = default_fps;
  }
  return choice;
}

ReadOptions options_of(const FrameRequest& request) {
  ReadOptions options;
  const auto filter = parse_resize_filter(request.filter);
  if (!filter) {
    throw Error(
        ErrorKind::usage,
        fmt::format("{} is no filter: bicubic, area, bilinear and nearest are", request.filter));
  }
  options.filter = *filter;
  options.frames_per_group = request.frames_per_block;
  options.threads = request.threads;
  options.cancel = request.cancel;
  if (request.width != 0 || request.height != 0) {
    const FrameSize size{request.width, request.height};
    options.target_size = [size](FrameSize, int64_t) { return size; };
  }
  return options;
}

OpenOptions open_options(bool live) {
  OpenOptions options;
  options.live = live;
  return options;
}

}  // namespace

struct VideoFile::State {
  std::unique_ptr<Video> video;
};

VideoFile::VideoFile(const std::string& source, bool live)
    : state_(std::make_unique<State>(State{open_video(source, open_options(live))})) {}
VideoFile::~VideoFile() = default;
VideoFile::VideoFile(VideoFile&&) noexcept = default;
VideoFile& VideoFile::operator=(VideoFile&&) noexcept = default;

VideoSummary VideoFile::summary() {
  const VideoInfo& info = state_->video->info();
  VideoSummary summary;
  summary.container = info.container;
  summary.codec = info.codec;
  summary.width = info.size.width;
  summary.height = info.size.height;
  summary.rotation = info.rotation;
  summary.frames = info.frames;
  summary.duration = info.duration;
  summary.fps = info.fps;
  summary.keyframes = info.keyframes;
  return summary;
}

ReadSummary VideoFile::read(const FrameRequest& request,
                            const std::function<bool(const FrameBlock& block)>& take) {
  FrameStream stream = state_->video->read(choice_of(request), options_of(request));
  while (const auto group = stream.next()) {
    const FrameBlock block{group->frames(),     group->height(),
                           group->width(),      group->pixels.data<uint8_t>(),
                           group->times.data(), group->index.data()};
    if (!take(block)) break;
  }
  const ReadReport report = stream.report();
  ReadSummary summary;
  summary.delivered = report.delivered;
  summary.lost = report.lost;
  for (const DamagedSpan& span : report.damaged) summary.damaged.emplace_back(span.from, span.to);
  return summary;
}

}  // namespace kinora
