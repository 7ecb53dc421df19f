#include "engine/visual_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace kinora {
namespace {

SamplingRule choose_rule(const Model& model, const VisualRequest& request) {
  if (request.fps && request.frames) {
    throw Error(ErrorKind::usage, "give either a frame rate or a number of frames, not both");
  }
  if (request.frames && *request.frames < 1) {
    throw Error(ErrorKind::usage,
                fmt::format("the number of frames is {}, but must be at least 1", *request.frames));
  }
  if (request.all_frames) return SamplingRule::all_frames().within(request.start, request.end);
  const double family_fps = model.default_fps();
  SamplingRule rule;
  if (family_fps > 0) {
    rule = SamplingRule::qwen(request.fps.value_or(family_fps));
    rule.count = request.frames.value_or(0);
    rule.max_frames = model.default_max_frames();
  } else if (request.fps) {
    rule = SamplingRule::every(*request.fps);
  } else {
    rule = SamplingRule::uniform(request.frames.value_or(model.default_max_frames()));
  }
  return rule.within(request.start, request.end);
}

// Samples a second over the part of the video that they were taken from, as the reference
// processors count it: samples / frames there × the average frame rate.
double sampled_rate(Video& video, const VisualRequest& request, size_t samples) {
  const std::vector<double>& times = video.times();
  const auto inside = std::count_if(times.begin(), times.end(), [&](double time) {
    return time >= request.start && time <= request.end;
  });
  return static_cast<double>(samples) / static_cast<double>(std::max<int64_t>(1, inside)) *
         video.info().fps;
}

}  // namespace

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
  const SamplingRule rule = choose_rule(model, request);
  check_rule(rule);
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
    input.samples = input.video->sample(rule);
    source.frames = static_cast<int64_t>(input.samples.size());
    source.sampled_fps = sampled_rate(*input.video, request, input.samples.size());
  }
  if (input.samples.empty()) {
    throw Error(ErrorKind::bad_input, request.source + " has no frame in the part asked for");
  }
  input.plan = model.plan_visual(source, request.limits);
  return input;
}

}  // namespace kinora
