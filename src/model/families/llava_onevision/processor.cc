#include "model/families/llava_onevision/processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/vision/processor_files.h"

namespace kinora {
namespace {

constexpr std::array<float, 3> siglip_mean{0.5f, 0.5f, 0.5f};
constexpr int64_t largest_picture = int64_t{32} << 20;  // pixels that are held at once

// int(round(value, 7)) of Python.
int64_t rounded_down(double value) { return static_cast<int64_t>(std::round(value * 1e7) / 1e7); }

// value // divisor of Python, which corrects the quotient by the remainder.
int64_t floor_divide(double value, double divisor) {
  const double quotient = (value - std::fmod(value, divisor)) / divisor;
  const double floor = std::floor(quotient);
  return static_cast<int64_t>(quotient - floor > 0.5 ? floor + 1 : floor);
}

double ratio(int64_t numerator, int64_t denominator) {
  return static_cast<double>(numerator) / static_cast<double>(denominator);
}

// Most pixels of the picture kept; of equals, least padding; of equals, the first.
Size best_resolution(Size picture, const std::vector<Size>& pinpoints) {
  Size best;
  int64_t best_effective = 0, best_wasted = std::numeric_limits<int64_t>::max();
  for (const Size& candidate : pinpoints) {
    const double scale =
        std::min(ratio(candidate.width, picture.width), ratio(candidate.height, picture.height));
    const int64_t width = static_cast<int64_t>(static_cast<double>(picture.width) * scale);
    const int64_t height = static_cast<int64_t>(static_cast<double>(picture.height) * scale);
    const int64_t effective = std::min(width * height, picture.width * picture.height);
    const int64_t wasted = candidate.width * candidate.height - effective;
    if (effective > best_effective || (effective == best_effective && wasted < best_wasted)) {
      best = candidate;
      best_effective = effective;
      best_wasted = wasted;
    }
  }
  return best;
}

std::vector<Size> parse_pinpoints(const nlohmann::json& json, int64_t side,
                                  const std::string& where) {
  const auto found = json.find("image_grid_pinpoints");
  std::vector<Size> pinpoints;
  if (found == json.end() || found->is_null()) {
    for (int64_t down = 1; down <= 6; ++down)
      for (int64_t across = 1; across <= 6; ++across)
        pinpoints.push_back({across * side, down * side});
    return pinpoints;
  }
  bool good = found->is_array() && !found->empty() && found->size() <= 1024;
  for (size_t i = 0; good && i < found->size(); ++i) {
    const nlohmann::json& pair = (*found)[i];
    good = pair.is_array() && pair.size() == 2 && pair[0].is_number_integer() &&
           pair[1].is_number_integer();
    if (!good) break;
    const int64_t height = pair[0].get<int64_t>(), width = pair[1].get<int64_t>();
    good = height > 0 && width > 0 && height <= 64 * side && width <= 64 * side &&
           height % side == 0 && width % side == 0;
    pinpoints.push_back({width, height});
  }
  if (!good) {
    throw Error(
        ErrorKind::bad_input,
        fmt::format("{}: image_grid_pinpoints must be pairs of multiples of {}", where, side));
  }
  return pinpoints;
}

template <typename Choice>
Choice parse_choice(const nlohmann::json& json, const char* key, Choice fallback,
                    std::initializer_list<std::pair<const char*, Choice>> choices,
                    const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return fallback;
  for (const auto& [name, choice] : choices)
    if (*found == name) return choice;
  throw Error(ErrorKind::unsupported, fmt::format("{}: {} is {}, which kinora does not know", where,
                                                  key, found->dump().substr(0, 40)));
}

int64_t parse_max_tiles(const nlohmann::json& json, const std::string& where) {
  const auto found = json.find("vision_aspect_ratio");
  if (found == json.end() || found->is_null()) return 9;
  const std::string text = found->is_string() ? found->get<std::string>() : "";
  const std::string prefix = "anyres_max_";
  int64_t tiles = 0;
  if (text.starts_with(prefix) && text.size() <= prefix.size() + 3) {
    const char* end = text.data() + text.size();
    if (std::from_chars(text.data() + prefix.size(), end, tiles).ptr != end) tiles = 0;
  }
  if (tiles < 1) {
    throw Error(ErrorKind::unsupported,
                fmt::format("{}: vision_aspect_ratio is {}, not anyres_max_N", where,
                            found->dump().substr(0, 40)));
  }
  return tiles;
}

}  // namespace

int64_t LlavaProcessor::Config::pooled() const {
  // Interpolation keeps a last odd row, pooling windows drop it.
  return pooling == VideoPooling::bilinear ? (grid() + pool_stride - 1) / pool_stride
                                           : grid() / pool_stride;
}

LlavaProcessor LlavaProcessor::read(const FileSystem& files, const std::string& directory) {
  return parse(files.read(join_path(directory, "config.json"), 1 << 20),
               read_processor_files(files, directory).image, directory);
}

LlavaProcessor LlavaProcessor::parse(const std::string& model_config,
                                     const std::string& preprocessor_config,
                                     const std::string& directory) {
  const std::string model_path = directory + "/config.json";
  const std::string own_path = directory + "/preprocessor_config.json";
  const nlohmann::json model = parse_processor_json(model_config, model_path);
  const nlohmann::json own = parse_processor_json(preprocessor_config, own_path);
  check_processor_keys(own, own_path);
  Config config;
  const auto vision = model.find("vision_config");
  if (vision == model.end() || !vision->is_object()) {
    throw Error(ErrorKind::bad_input, fmt::format("{} has no vision_config", model_path));
  }
  config.side = positive_integer(*vision, "image_size", config.side, model_path);
  config.patch = positive_integer(*vision, "patch_size", config.patch, model_path);
  if (config.side > 4096 || config.patch > config.side) {
    throw Error(ErrorKind::unsupported, fmt::format("{}: pictures of {} pixels in patches of {}",
                                                    model_path, config.side, config.patch));
  }
  const auto size = own.find("size");
  if (size != own.end() && size->is_object()) {
    const int64_t height = positive_integer(
        *size, "height", positive_integer(*size, "shortest_edge", config.side, own_path), own_path);
    if (height != config.side || positive_integer(*size, "width", height, own_path) != height) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: size is {}, but the tower of {} takes {}×{}", own_path,
                              size->dump().substr(0, 80), model_path, config.side, config.side));
    }
  }
  config.max_tiles = parse_max_tiles(model, model_path);
  config.pinpoints = parse_pinpoints(model.contains("image_grid_pinpoints") ? model : own,
                                     config.side, model_path);
  config.pooling = parse_choice(model, "mm_spatial_pool_mode", config.pooling,
                                {{"bilinear", VideoPooling::bilinear},
                                 {"average", VideoPooling::average},
                                 {"max", VideoPooling::max}},
                                model_path);
  config.pool_stride = positive_integer(model, "mm_spatial_pool_stride", 2, model_path);
  config.newline = parse_choice(model, "mm_newline_position", config.newline,
                                {{"one_token", VideoNewline::one_token},
                                 {"grid", VideoNewline::grid},
                                 {"frame", VideoNewline::frame},
                                 {"no_token", VideoNewline::none}},
                                model_path);
  if (config.pooled() < 1) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: mm_spatial_pool_stride {} leaves nothing of {} patches",
                            model_path, config.pool_stride, config.grid()));
  }
  return LlavaProcessor(std::move(config),
                        normalizer_from(own, siglip_mean, siglip_mean, own_path));
}

PictureLayout LlavaProcessor::layout(Size picture) const {
  PictureLayout layout;
  layout.best = best_resolution(picture, config_.pinpoints);
  if (layout.best.width == 0) {
    // As refused by the reference: no resolution holds even one pixel of it.
    throw Error(ErrorKind::unsupported,
                fmt::format("the picture is {}×{}: too thin for the model; crop it first",
                            picture.width, picture.height));
  }
  const double scale_width = ratio(layout.best.width, picture.width);
  const double scale_height = ratio(layout.best.height, picture.height);
  if (scale_width < scale_height) {
    const double height = std::ceil(static_cast<double>(picture.height) * scale_width);
    layout.inside = {layout.best.width, std::min(static_cast<int64_t>(height), layout.best.height)};
  } else {
    const double width = std::ceil(static_cast<double>(picture.width) * scale_height);
    layout.inside = {std::min(static_cast<int64_t>(width), layout.best.width), layout.best.height};
  }
  layout.tiles = {layout.best.width / config_.side, layout.best.height / config_.side};

  const int64_t grid = config_.grid();
  layout.cells = {layout.tiles.width * grid, layout.tiles.height * grid};
  layout.kept = layout.cells;
  if (ratio(picture.width, picture.height) > ratio(layout.cells.width, layout.cells.height)) {
    const int64_t height = rounded_down(static_cast<double>(picture.height) *
                                        ratio(layout.cells.width, picture.width));
    layout.first.height = (layout.cells.height - height) / 2;
    layout.kept.height -= 2 * layout.first.height;
  } else {
    const int64_t width = rounded_down(static_cast<double>(picture.width) *
                                       ratio(layout.cells.height, picture.height));
    layout.first.width = (layout.cells.width - width) / 2;
    layout.kept.width -= 2 * layout.first.width;
  }
  layout.shrunk = layout.kept;
  const double excess =
      std::sqrt(ratio(layout.kept.width * layout.kept.height, config_.max_tiles * grid * grid));
  if (excess > 1.1) {
    const auto shrink = [&](int64_t cells) {
      return std::max<int64_t>(1, floor_divide(static_cast<double>(cells), excess));
    };
    layout.shrunk = {shrink(layout.kept.width), shrink(layout.kept.height)};
  }
  layout.tokens = grid * grid + layout.shrunk.height * (layout.shrunk.width + 1);
  return layout;
}

VisualPlan LlavaProcessor::plan(const VisualSource& source) const {
  if (source.size.width < 1 || source.size.height < 1) {
    throw Error(ErrorKind::bad_input, fmt::format("the picture has no pixels ({}×{})",
                                                  source.size.width, source.size.height));
  }
  if (source.frames < 1) {
    throw Error(ErrorKind::bad_input, "the video has no frames in the chosen span");
  }
  VisualPlan plan;
  plan.source = source;
  plan.filter = ResizeFilter::bicubic;
  plan.frames_per_unit = 1;
  plan.units = source.frames;
  const int64_t pooled = config_.pooled();
  if (source.modality == Modality::video) {
    plan.frame_size = {config_.side, config_.side};
    plan.grid = {pooled + (config_.newline == VideoNewline::grid ? 1 : 0), pooled};
    plan.tokens_per_unit =
        plan.grid.width * plan.grid.height + (config_.newline == VideoNewline::frame ? 1 : 0);
    plan.trailing_tokens = config_.newline == VideoNewline::one_token ? 1 : 0;
    if (source.sampled_fps > 0) plan.seconds_per_unit = 1 / source.sampled_fps;
    return plan;
  }
  const int64_t pixels = source.size.width * source.size.height;
  const int64_t divisor = static_cast<int64_t>(
      std::ceil(std::sqrt(static_cast<double>(pixels) / static_cast<double>(largest_picture))));
  plan.frame_size = {std::max<int64_t>(1, source.size.width / std::max<int64_t>(1, divisor)),
                     std::max<int64_t>(1, source.size.height / std::max<int64_t>(1, divisor))};
  const bool alone = source.images_in_prompt <= 1;
  plan.tokens_per_unit = alone ? layout(source.size).tokens : config_.grid() * config_.grid() + 1;
  plan.grid = {config_.grid(), config_.grid()};
  return plan;
}

Tensor LlavaProcessor::patches(const Context& context, ConstTensorView tiles,
                               const PatchFormat& format) const {
  return raster_patches(context, tiles, config_.patch, normalizer_, format);
}

}  // namespace kinora
