#include "engine/visual_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace kinora {
namespace {

void check_request(const VisualRequest& request) {
  if (request.fps && request.frames) {
    throw Error(ErrorKind::usage, "give either a frame rate or a number of frames, not both");
  }
  if (request.frames && *request.frames < 1) {
    throw Error(ErrorKind::usage,
                fmt::format("the number of frames is {}, but must be at least 1", *request.frames));
  }
  SamplingRule rule = SamplingRule::all_frames();
  if (request.fps) rule = SamplingRule::every(*request.fps);
  check_rule(rule.within(request.start, request.end));
}

// The frames of a video that lie in the part asked for: [first, first + count).
struct FrameRange {
  int64_t first = 0;
  int64_t count = 0;
};

FrameRange frames_within(Video& video, double start, double end) {
  const std::vector<double>& times = video.times();
  const auto first = std::lower_bound(times.begin(), times.end(), start);
  const auto last = std::upper_bound(first, times.end(), end);
  return {first - times.begin(), last - first};
}

// A header rounds, and sound may last a little longer than pictures.
constexpr double shortfall_seconds = 1, shortfall_share = 0.02;

std::string describe_shortfall(const VisualRequest& request, const VideoInfo& info) {
  const double missing = std::min(info.promised_duration, request.end) - info.duration;
  if (missing <= std::max(shortfall_seconds, shortfall_share * info.promised_duration)) return "";
  return fmt::format(
      "{} ends after {:.2f} s, but its header promises {:.2f} s: the rest is missing",
      request.source, info.duration, info.promised_duration);
}

// The family's own choice of frames, as far as the person leaves it to the family.
SamplingRule choose_rule(const Model& model, const VisualRequest& request, FrameRange range,
                         double source_fps) {
  if (request.all_frames) return SamplingRule::all_frames();
  std::vector<int64_t> chosen =
      model.choose_frames(range.count, source_fps, request.frames.value_or(0));
  if (chosen.empty()) {
    SamplingRule rule = SamplingRule::qwen(request.fps.value_or(model.default_fps()));
    rule.count = request.frames.value_or(0);
    // A rate that a person asks for is not cut short by the family's habit.
    if (!request.fps) rule.max_frames = model.default_max_frames();
    if (request.fps) rule.max_frames = VideoLimits{}.max_samples;
    return rule;
  }
  if (request.fps) return SamplingRule::every(*request.fps);
  for (int64_t& index : chosen) index += range.first;
  return SamplingRule::at_indices(std::move(chosen));
}

}  // namespace

void VisualInput::look_at(const Model& model, int64_t frames) {
  const auto had = static_cast<int64_t>(samples.size());
  std::vector<SampledFrame> chosen;
  for (int64_t i = 0; i < frames; ++i) {
    const int64_t from = frames > 1 ? (i * (had - 1) + (frames - 1) / 2) / (frames - 1) : had / 2;
    chosen.push_back(samples[static_cast<size_t>(from)]);
  }
  samples = std::move(chosen);
  VisualSource described = plan.source;
  described.frames = frames;
  described.sampled_fps *= static_cast<double>(frames) / static_cast<double>(had);
  plan = model.plan_visual(described, limits);
}

void VisualInput::look_at_less(const Model& model, double frame_share, double pixel_share) {
  if (plan.source.modality == Modality::video && frame_share < 1) {
    const auto had = static_cast<int64_t>(samples.size());
    const int64_t unit = plan.frames_per_unit;
    const auto units =
        static_cast<int64_t>(frame_share * static_cast<double>(had) / static_cast<double>(unit));
    const int64_t frames = std::max<int64_t>(1, units) * unit;
    if (frames < had) look_at(model, frames);
    sampled = static_cast<int64_t>(samples.size());
  }
  if (pixel_share < 1) {
    const auto pixels = static_cast<double>(plan.frame_size.width * plan.frame_size.height);
    limits.max_pixels = std::max<int64_t>(1, std::llround(pixel_share * pixels));
    limits.min_pixels = std::min(limits.min_pixels, limits.max_pixels);
    plan = model.plan_visual(plan.source, limits);
  }
}

void VisualInput::plan_among(const Model& model, int64_t images) {
  VisualSource described = plan.source;
  described.images_in_prompt = images;
  plan = model.plan_visual(described, limits);
}

VisualInput open_visual(const Model& model, const VisualRequest& request, OpenOptions options) {
  if (!model.info().sees) {
    throw Error(ErrorKind::unsupported, fmt::format("{} is a text model: it cannot look at {}",
                                                    model.info().name, request.source));
  }
  check_request(request);
  VisualInput input;
  input.source = request.source;
  input.limits = request.limits;
  options.folder_fps = request.folder_fps;
  input.video = open_video(request.source, options);
  if (input.video->live()) {
    throw Error(ErrorKind::unsupported,
                request.source + " is a live source; a question needs a video that ends");
  }
  const VideoInfo& info = input.video->info();
  VisualSource source;
  source.size = {info.size.width, info.size.height};
  if (info.still) {
    source.modality = Modality::image;
    input.samples = input.video->sample(SamplingRule::all_frames());
  } else {
    input.shortfall = describe_shortfall(request, info);
    const FrameRange range = frames_within(*input.video, request.start, request.end);
    if (range.count > 0) {
      const SamplingRule rule = choose_rule(model, request, range, info.fps);
      input.samples = input.video->sample(rule.within(request.start, request.end));
    }
    source.frames = static_cast<int64_t>(input.samples.size());
    // As the reference processors count it: samples / frames there × the average frame rate.
    source.sampled_fps = static_cast<double>(source.frames) /
                         static_cast<double>(std::max<int64_t>(1, range.count)) * info.fps;
  }
  if (input.samples.empty()) {
    throw Error(ErrorKind::bad_input, request.source + " has no frame in the part asked for");
  }
  input.plan = model.plan_visual(source, request.limits);
  input.sampled = static_cast<int64_t>(input.samples.size());
  if (!request.subtitles.empty()) {
    if (info.still) {
      throw Error(ErrorKind::usage, request.source + " is a picture: it has no subtitles");
    }
    input.subtitles = read_subtitles(real_files(), request.subtitles);
    std::erase_if(input.subtitles, [&](const Subtitle& subtitle) {
      return subtitle.end < request.start || subtitle.begin > request.end;
    });
  }
  return input;
}

}  // namespace kinora
