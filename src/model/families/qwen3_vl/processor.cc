#include "model/families/qwen3_vl/processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/vision/processor_files.h"

namespace kinora {
namespace {

// Of a whole video, where the files say nothing: what all published ones say.
constexpr double published_least = 4096, published_most = 25165824;
constexpr int64_t published_frame_tokens = 768;
constexpr double max_ratio = 200;

// To the nearest multiple, halves to the even one, as Python rounds. Safe whatever the rounding
// mode of the thread.
double nearest_multiple(double value, double step) {
  const double low = std::floor(value / step), rest = value / step - low;
  const bool up = rest > 0.5 || (rest == 0.5 && std::fmod(low, 2) != 0);
  return (up ? low + 1 : low) * step;
}

}  // namespace

Size video_resize(Size source, int64_t frames, int64_t temporal_patch, int64_t factor,
                  double min_pixels, double max_pixels) {
  if (source.width < 1 || source.height < 1) {
    throw Error(ErrorKind::bad_input,
                fmt::format("the video has no pixels ({}×{})", source.width, source.height));
  }
  const auto step = static_cast<double>(factor);
  auto height = static_cast<double>(source.height), width = static_cast<double>(source.width);
  if (height < step || width < step) {
    const double grow = std::max(step / height, step / width);
    height = std::floor(height * grow);
    width = std::floor(width * grow);
  }
  if (std::max(height, width) / std::min(height, width) > max_ratio) {
    throw Error(ErrorKind::unsupported,
                fmt::format("the video is {}×{}: one side may be at most {} times the other; crop "
                            "it first",
                            source.width, source.height, max_ratio));
  }
  double rounded_height = nearest_multiple(height, step);
  double rounded_width = nearest_multiple(width, step);
  const auto count = static_cast<double>(frames);
  const double pixels =
      nearest_multiple(count, static_cast<double>(temporal_patch)) * rounded_height * rounded_width;
  if (pixels > max_pixels) {
    const double shrink = std::sqrt(count * height * width / max_pixels);
    rounded_height = std::max(step, std::floor(height / shrink / step) * step);
    rounded_width = std::max(step, std::floor(width / shrink / step) * step);
  } else if (pixels < min_pixels) {
    const double grow = std::sqrt(min_pixels / (count * height * width));
    rounded_height = std::ceil(height * grow / step) * step;
    rounded_width = std::ceil(width * grow / step) * step;
  }
  return {static_cast<int64_t>(rounded_width), static_cast<int64_t>(rounded_height)};
}

Qwen3Processor Qwen3Processor::read(const FileSystem& files, const std::string& directory) {
  const ProcessorFiles found = read_processor_files(files, directory);
  return parse(found.image, found.where, found.video);
}

Qwen3Processor Qwen3Processor::parse(const std::string& text, const std::string& where,
                                     const std::string& video_text) {
  Qwen3Processor result(QwenProcessor::parse(text, where, video_text));
  result.least_ = published_least;
  result.most_ = published_most;
  if (video_text.empty()) return result;
  result.least_ = static_cast<double>(result.config().video_min_pixels);
  result.most_ = static_cast<double>(result.config().video_max_pixels);
  const nlohmann::json video = parse_processor_json(video_text, where);
  const auto capped = video.find("cap_pixels_per_frame");
  if (capped != video.end() && capped->is_boolean() && capped->get<bool>()) {
    result.most_frame_tokens_ =
        positive_integer(video, "max_video_tokens", published_frame_tokens, where);
  }
  return result;
}

double Qwen3Processor::most_pixels(int64_t frames) const {
  if (most_frame_tokens_ == 0) return most_;
  const int64_t factor = config().patch * config().merge;
  const double share = std::floor(most_ / static_cast<double>(frames));
  const double cap = static_cast<double>(most_frame_tokens_ * factor * factor);
  return std::max(std::min(cap, share), std::floor(least_ * 1.05)) * static_cast<double>(frames);
}

VisualPlan Qwen3Processor::plan(const VisualSource& source, const VisualLimits& limits) const {
  if (source.modality != Modality::video) return pictures_.plan(source, limits);
  const QwenProcessor::Config& sizes = config();
  if (source.frames < 1) {
    throw Error(ErrorKind::bad_input, "the video has no frames in the chosen span");
  }
  if (limits.min_pixels > 0 && limits.max_pixels > 0 && limits.min_pixels > limits.max_pixels) {
    throw Error(ErrorKind::usage,
                fmt::format("the least number of pixels ({}) is over the largest ({})",
                            limits.min_pixels, limits.max_pixels));
  }
  const int64_t frames = std::max(source.frames, sizes.temporal_patch);  // one is shown twice
  const auto of_all = [&](int64_t pixels) {
    return static_cast<double>(pixels) * static_cast<double>(frames);
  };
  double least = least_, most = most_pixels(frames);
  if (limits.min_pixels > 0) least = of_all(limits.min_pixels);
  if (limits.max_pixels > 0) most = std::min(most, of_all(limits.max_pixels));
  least = std::min(least, most);

  const int64_t factor = sizes.patch * sizes.merge;
  VisualPlan plan;
  plan.source = source;
  plan.frame_size = video_resize(source.size, frames, sizes.temporal_patch, factor, least, most);
  plan.filter = ResizeFilter::bicubic;
  plan.frames_per_unit = sizes.temporal_patch;
  plan.units = (source.frames + sizes.temporal_patch - 1) / sizes.temporal_patch;
  plan.grid = {plan.frame_size.width / factor, plan.frame_size.height / factor};
  plan.tokens_per_unit = plan.grid.width * plan.grid.height;
  plan.units_apart = true;
  if (source.sampled_fps > 0 && std::isfinite(source.sampled_fps)) {
    plan.seconds_per_unit = static_cast<double>(sizes.temporal_patch) / source.sampled_fps;
  }
  return plan;
}

}  // namespace kinora
