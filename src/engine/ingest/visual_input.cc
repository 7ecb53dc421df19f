#include "engine/ingest/visual_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "video/empty_part.h"
#include "video/shortfall.h"

namespace kinora {
namespace {

std::string describe_shortfall(const VisualRequest& request, const VideoInfo& info) {
  if (missing_seconds(info, request.frames.end) == 0) return "";
  return fmt::format(
      "{} ends after {:.2f} s, but its header promises {:.2f} s: the rest is missing",
      request.source, info.duration, info.promised_duration);
}

// What the choice comes to for this model: frames by number, or by time.
FrameChoice choose_frames(const Model& model, const FrameChoice& choice, const FrameRange& part,
                          double source_fps) {
  using Way = FrameChoice::Way;
  FrameWish wish;
  wish.first = part.first;
  if (choice.way == Way::rate) wish.fps = choice.fps;
  if (choice.way == Way::count) wish.count = choice.count;
  const bool by_family = choice.way == Way::model || wish.fps || wish.count;
  if (!by_family) return choice;
  std::vector<int64_t> chosen = model.choose_frames(part.count, source_fps, wish);
  if (chosen.empty()) return choice;
  for (int64_t& index : chosen) index += part.first;
  FrameChoice listed = FrameChoice::at_indices(std::move(chosen)).within(choice.start, choice.end);
  listed.snap = choice.snap;
  return listed;
}

// As the reference processors count it: samples / frames there × the average frame rate. Frames
// that a person lists need not cover the part: then it is their own rate.
double sampled_rate(const FrameChoice& choice, const std::vector<SampledFrame>& samples,
                    const FrameRange& part, double source_fps) {
  using Way = FrameChoice::Way;
  const auto count = static_cast<double>(samples.size());
  if ((choice.way == Way::times || choice.way == Way::indices) && !samples.empty()) {
    const double seconds = samples.back().time - samples.front().time;
    return seconds > 0 ? (count - 1) / seconds : source_fps;
  }
  return count / static_cast<double>(std::max<int64_t>(1, part.count)) * source_fps;
}

// A file of subtitles, or those inside the video.
std::vector<Subtitle> read_along(Video& video, std::string_view wanted, const CancelToken& cancel) {
  constexpr std::string_view inside = "embedded";
  if (wanted == inside) return video.subtitles("");
  if (wanted.starts_with(inside) && wanted[inside.size()] == ':') {
    return video.subtitles(std::string(wanted.substr(inside.size() + 1)));
  }
  return read_subtitles(real_files(), std::string(wanted), cancel);
}

VisualInput open_source(const Model& model, const VisualRequest& request, OpenOptions options) {
  if (!model.info().sees) {
    throw Error(ErrorKind::unsupported, fmt::format("{} is a text model: it cannot look at {}",
                                                    model.info().name, request.source));
  }
  check_choice(request.frames);
  VisualInput input;
  input.source = request.source;
  input.limits = request.limits;
  options.folder_fps = request.folder_fps;
  options.limits = request.source_limits;
  input.video = open_video(request.source, options);
  return input;
}

}  // namespace

VideoLimits video_limits(const InputLimits& limits) {
  VideoLimits result;
  result.raise(limits.times);
  result.other_hosts = limits.other_hosts;
  result.how_to_raise = limits.how_to_raise;
  return result;
}

VisualLook VisualInput::fewer(int64_t frames) const {
  const auto had = static_cast<int64_t>(samples.size());
  VisualLook look{{}, plan.with_frames(frames)};
  for (int64_t i = 0; i < frames; ++i) {
    const int64_t from = frames > 1 ? (i * (had - 1) + (frames - 1) / 2) / (frames - 1) : had / 2;
    look.samples.push_back(samples[static_cast<size_t>(from)]);
  }
  return look;
}

void VisualInput::look_at_less(const Model& model, double frame_share, double pixel_share) {
  if (plan.source.modality == Modality::video && frame_share < 1) {
    const auto had = static_cast<int64_t>(samples.size());
    const int64_t unit = plan.frames_per_unit;
    const auto units =
        static_cast<int64_t>(frame_share * static_cast<double>(had) / static_cast<double>(unit));
    const int64_t frames = std::max<int64_t>(1, units) * unit;
    if (frames < had) {
      static_cast<VisualLook&>(*this) = fewer(frames);
      plan = model.plan_visual(plan.source, limits);  // fewer frames may be larger
    }
  }
  if (pixel_share < 1) {
    const auto pixels = static_cast<double>(plan.frame_size.width * plan.frame_size.height);
    limits.max_pixels = std::max<int64_t>(1, std::llround(pixel_share * pixels));
    limits.min_pixels = std::min(limits.min_pixels, limits.max_pixels);
    plan = model.plan_visual(plan.source, limits);
  }
}

void VisualInput::snap(double share, const FrameChoice& among) {
  if (samples.size() < 2 || plan.source.modality != Modality::video) return;
  const double apart =
      (samples.back().time - samples.front().time) / static_cast<double>(samples.size() - 1);
  std::vector<int64_t> wanted;
  for (const SampledFrame& sample : samples) wanted.push_back(sample.index);
  FrameChoice choice = FrameChoice::at_indices(std::move(wanted)).within(among.start, among.end);
  choice.snap = share * apart;
  if (choice.snap > 0) samples = video->sample(choice);
}

void VisualInput::plan_among(const Model& model, int64_t images) {
  VisualSource described = plan.source;
  described.images_in_prompt = images;
  plan = model.plan_visual(described, limits);
}

VisualInput open_visual(const Model& model, const VisualRequest& request, OpenOptions options) {
  const CancelToken cancel = options.cancel;
  VisualInput input = open_source(model, request, std::move(options));
  if (input.video->live()) {
    throw Error(ErrorKind::unsupported,
                request.source + " is a live source; a question needs a video that ends");
  }
  const VideoInfo& info = input.video->info();
  VisualSource source;
  source.size = {info.size.width, info.size.height};
  if (info.still) {
    source.modality = Modality::image;
    input.samples = input.video->sample(FrameChoice::all());
  } else {
    input.shortfall = describe_shortfall(request, info);
    const FrameChoice& choice = request.frames;
    const FrameRange part = frames_within(input.video->times(), choice.start, choice.end);
    if (part.count > 0) {
      input.samples = input.video->sample(choose_frames(model, choice, part, info.fps));
    }
    source.frames = static_cast<int64_t>(input.samples.size());
    source.sampled_fps = sampled_rate(choice, input.samples, part, info.fps);
  }
  if (input.samples.empty()) refuse_empty_part(request.source, input.video->times());
  input.plan = model.plan_visual(source, request.limits);
  if (!request.subtitles.empty()) {
    if (info.still) {
      throw Error(ErrorKind::usage, request.source + " is a picture: it has no subtitles");
    }
    input.subtitles = read_along(*input.video, request.subtitles, cancel);
    std::erase_if(input.subtitles, [&](const Subtitle& subtitle) {
      return subtitle.end < request.frames.start || subtitle.begin > request.frames.end;
    });
  }
  return input;
}

VisualInput open_endless(const Model& model, const VisualRequest& request, double frame_share,
                         double pixel_share, OpenOptions options) {
  using Way = FrameChoice::Way;
  FrameChoice choice = request.frames;
  if (choice.way != Way::model && choice.way != Way::rate && choice.way != Way::all) {
    throw Error(ErrorKind::usage,
                "frames of a source that is looked at as it comes are chosen by their rate, or all",
                ErrorHint::set_frame_rate);
  }
  if (!(request.coming.speed >= 0) || std::isinf(request.coming.speed)) {
    throw Error(ErrorKind::usage, "a video is played at a speed above 0, or as fast as it comes");
  }
  if (!request.subtitles.empty()) {
    throw Error(ErrorKind::usage,
                request.source + " is looked at as it comes: subtitles cannot be read along");
  }
  VisualInput input = open_source(model, request, std::move(options));
  const VideoInfo& info = input.video->info();
  if (info.still) {
    throw Error(ErrorKind::usage, request.source + " is a picture: add it instead");
  }
  if (choice.way == Way::model) {
    choice.way = Way::rate;
    choice.fps = frame_share * (model.default_fps() > 0 ? model.default_fps() : 1);
  }
  VisualSource source;
  source.size = {info.size.width, info.size.height};
  source.frames = model.default_max_frames();  // as large as in the longest video
  source.sampled_fps = choice.way == Way::rate ? choice.fps : info.fps;
  input.plan = model.plan_visual(source, input.limits);
  input.look_at_less(model, 1, pixel_share);
  input.plan.units = 0;
  input.open = choice;
  input.coming = request.coming;
  input.read = true;
  return input;
}

}  // namespace kinora
