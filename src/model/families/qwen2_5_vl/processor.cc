#include "model/families/qwen2_5_vl/processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/vision/gpu_patches.h"
#include "model/vision/processor_files.h"

namespace kinora {
namespace {

constexpr std::array<float, 3> clip_mean{0.48145466f, 0.4578275f, 0.40821073f};
constexpr std::array<float, 3> clip_deviation{0.26862954f, 0.26130258f, 0.27577711f};

constexpr int64_t max_ratio = 200;

// qwen-vl-utils, in tokens of a frame and of a prompt.
constexpr double least_frame_tokens = 128;
constexpr double most_frame_tokens = 768;
constexpr double prompt_tokens = 128000;
constexpr double visual_share = 0.9;

// Python's round: halves go to the even side. Safe whatever the rounding mode of the thread.
double round_half_even(double value) {
  const double low = std::floor(value), rest = value - low;
  if (rest != 0.5) return rest < 0.5 ? low : low + 1;
  return std::fmod(low, 2) == 0 ? low : low + 1;
}

// Older files have min_pixels and max_pixels, newer ones a size.
void read_limits(const nlohmann::json& json, int64_t& least, int64_t& most,
                 const std::string& where) {
  const auto size = json.find("size");
  if (size != json.end() && size->is_object()) {
    least = positive_integer(*size, "shortest_edge", least, where);
    most = positive_integer(*size, "longest_edge", most, where);
  }
  least = positive_integer(json, "min_pixels", least, where);
  most = positive_integer(json, "max_pixels", most, where);
  if (least > most) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: min_pixels ({}) is over max_pixels ({})", where, least, most));
  }
}

}  // namespace

Size smart_resize(Size source, int64_t factor, double min_pixels, double max_pixels,
                  bool at_least_one) {
  if (source.width < 1 || source.height < 1) {
    throw Error(ErrorKind::bad_input,
                fmt::format("the picture has no pixels ({}×{})", source.width, source.height));
  }
  const double height = static_cast<double>(source.height);
  const double width = static_cast<double>(source.width);
  if (std::max(height, width) / std::min(height, width) > max_ratio) {
    throw Error(
        ErrorKind::unsupported,
        fmt::format("the picture is {}×{}: one side may be at most {} times the other; crop "
                    "it first",
                    source.width, source.height, max_ratio));
  }
  const double step = static_cast<double>(factor);
  double rounded_height = round_half_even(height / step) * step;
  double rounded_width = round_half_even(width / step) * step;
  if (at_least_one) {
    rounded_height = std::max(step, rounded_height);
    rounded_width = std::max(step, rounded_width);
  }
  const double area = rounded_height * rounded_width;
  if (area > max_pixels) {
    const double shrink = std::sqrt(height * width / max_pixels);
    rounded_height = std::max(step, std::floor(height / shrink / step) * step);
    rounded_width = std::max(step, std::floor(width / shrink / step) * step);
  } else if (area < min_pixels) {
    const double grow = std::sqrt(min_pixels / (height * width));
    rounded_height = std::ceil(height * grow / step) * step;
    rounded_width = std::ceil(width * grow / step) * step;
  }
  return {static_cast<int64_t>(rounded_width), static_cast<int64_t>(rounded_height)};
}

QwenProcessor QwenProcessor::read(const FileSystem& files, const std::string& directory) {
  const ProcessorFiles found = read_processor_files(files, directory);
  return parse(found.image, found.where, found.video);
}

QwenProcessor QwenProcessor::parse(const std::string& text, const std::string& where,
                                   const std::string& video_text) {
  const nlohmann::json json = parse_processor_json(text, where);
  Config config;
  config.patch = positive_integer(json, "patch_size", config.patch, where);
  config.temporal_patch =
      positive_integer(json, "temporal_patch_size", config.temporal_patch, where);
  config.merge = positive_integer(json, "merge_size", config.merge, where);
  if (config.patch > 256 || config.merge > 16 || config.temporal_patch > 16) {
    throw Error(ErrorKind::unsupported,
                fmt::format("{}: patches of {} pixels × {} frames, merged {}: too large", where,
                            config.patch, config.temporal_patch, config.merge));
  }
  check_processor_keys(json, where);
  read_limits(json, config.min_pixels, config.max_pixels, where);
  if (!video_text.empty()) {
    config.video_min_pixels = config.min_pixels;
    config.video_max_pixels = config.max_pixels;
    const nlohmann::json video = parse_processor_json(video_text, where);
    check_processor_keys(video, where);
    read_limits(video, config.video_min_pixels, config.video_max_pixels, where);
  }
  return QwenProcessor(config, normalizer_from(json, clip_mean, clip_deviation, where));
}

VisualPlan QwenProcessor::plan(const VisualSource& source, const VisualLimits& limits) const {
  const int64_t factor = config_.patch * config_.merge;
  const double token_pixels = static_cast<double>(factor * factor);
  const bool video = source.modality == Modality::video;
  const bool own_limits = video && config_.video_max_pixels > 0;
  double least = static_cast<double>(own_limits ? config_.video_min_pixels : config_.min_pixels);
  double most = static_cast<double>(own_limits ? config_.video_max_pixels : config_.max_pixels);
  if (source.frames < 1) {
    throw Error(ErrorKind::bad_input, "the video has no frames in the chosen span");
  }
  if (video && least_frame_tokens * token_pixels <= most) least = least_frame_tokens * token_pixels;
  if (limits.min_pixels > 0) least = static_cast<double>(limits.min_pixels);
  if (video) {
    const double share = prompt_tokens * token_pixels * visual_share /
                         static_cast<double>(source.frames) *
                         static_cast<double>(config_.temporal_patch);
    const double budget =
        std::max(std::min(most_frame_tokens * token_pixels, share), std::floor(least * 1.05));
    most = std::min(most, budget);
    if (limits.max_pixels > 0) most = std::min(budget, static_cast<double>(limits.max_pixels));
  } else if (limits.max_pixels > 0) {
    most = static_cast<double>(limits.max_pixels);
  }
  if (most < least) {
    if (limits.min_pixels > 0 && limits.max_pixels > 0 && limits.min_pixels > limits.max_pixels) {
      throw Error(ErrorKind::usage,
                  fmt::format("the least number of pixels ({}) is over the largest ({})",
                              limits.min_pixels, limits.max_pixels));
    }
    // The limit that the caller gave is the one that counts.
    if (limits.min_pixels > 0) {
      most = least;
    } else {
      least = most;
    }
  }

  VisualPlan plan;
  plan.source = source;
  plan.frame_size = smart_resize(source.size, factor, least, most, video);
  plan.filter = ResizeFilter::bicubic;
  plan.frames_per_unit = config_.temporal_patch;
  plan.units = (source.frames + config_.temporal_patch - 1) / config_.temporal_patch;
  plan.grid = {plan.frame_size.width / factor, plan.frame_size.height / factor};
  plan.tokens_per_unit = plan.grid.width * plan.grid.height;
  if (video) {
    if (!(source.sampled_fps > 0) || !std::isfinite(source.sampled_fps)) {
      throw Error(
          ErrorKind::bad_input,
          fmt::format("the video's frame rate is {}; choose one yourself", source.sampled_fps),
          ErrorHint::set_frame_rate);
    }
    plan.seconds_per_unit = static_cast<double>(config_.temporal_patch) / source.sampled_fps;
  }
  return plan;
}

Tensor QwenProcessor::patches(const Context& context, ConstTensorView frames,
                              const PatchFormat& format) const {
  const int64_t patch = config_.patch, merge = config_.merge, span = config_.temporal_patch;
  const int64_t block = patch * merge;
  if (frames.rank() != 4 || frames.dtype() != DType::u8 || frames.size(3) != 3 ||
      frames.size(0) < 1 || frames.size(1) % block != 0 || frames.size(2) % block != 0) {
    throw Error(ErrorKind::internal, fmt::format("frames {} do not divide into blocks of {}",
                                                 to_string(frames.shape()), block));
  }
  if (!context.device.is_cpu()) {
    return gpu_patches(context, frames, {span, merge, patch}, normalizer_, format);
  }
  const int64_t count = frames.size(0), units = (count + span - 1) / span;
  const int64_t down = frames.size(1) / block, across = frames.size(2) / block;
  const int64_t row = frames.stride(1), pixel = frames.stride(2);
  Tensor out(DType::f32, {units * down * across * merge * merge, 3 * span * patch * patch});

  const auto write_patch = [&](int64_t unit, int64_t top, int64_t left, float* target) {
    for (int64_t channel = 0; channel < 3; ++channel) {
      const auto& table = normalizer_.channel(channel);
      for (int64_t t = 0; t < span; ++t) {
        const uint8_t* picture = frames.row<uint8_t>(std::min(unit * span + t, count - 1));
        for (int64_t y = 0; y < patch; ++y) {
          const uint8_t* source = picture + (top + y) * row + left * pixel + channel;
          for (int64_t x = 0; x < patch; ++x) *target++ = table[source[x * pixel]];
        }
      }
    }
  };
  context.threads->parallel_for(units * down, 1, [&](int64_t begin, int64_t end) {
    for (int64_t strip = begin; strip < end; ++strip) {
      float* target = out.data<float>() + strip * across * merge * merge * out.size(1);
      for (int64_t column = 0; column < across; ++column) {
        for (int64_t inner = 0; inner < merge * merge; ++inner) {
          write_patch(strip / down, strip % down * block + inner / merge * patch,
                      column * block + inner % merge * patch, target);
          target += out.size(1);
        }
      }
    }
  });
  return out;
}

}  // namespace kinora
