#include "model/vision/processor_pixels.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json/json_depth.h"
#include "model/vision/gpu_patches.h"

namespace kinora {

PixelNormalizer::PixelNormalizer(const std::array<float, 3>& mean,
                                 const std::array<float, 3>& deviation)
    : mean_(mean) {
  for (size_t channel = 0; channel < 3; ++channel) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const double value = (static_cast<double>(byte) / 255 - mean[channel]) /
                           static_cast<double>(deviation[channel]);
      tables_[channel][byte] = static_cast<float>(value);
    }
  }
}

Tensor raster_patches(const Context& context, ConstTensorView pictures, int64_t patch,
                      const PixelNormalizer& normalizer, const PatchFormat& format) {
  if (!context.device.is_cpu()) {
    return gpu_patches(context, pictures, {1, 1, patch}, normalizer, format);
  }
  const int64_t down = pictures.size(1) / patch, across = pictures.size(2) / patch;
  Tensor out(DType::f32, {pictures.size(0) * down * across, 3 * patch * patch});
  context.threads->parallel_for(pictures.size(0) * down, 4, [&](int64_t begin, int64_t end) {
    for (int64_t strip = begin; strip < end; ++strip) {
      const uint8_t* picture = pictures.row<uint8_t>(strip / down);
      for (int64_t column = 0; column < across; ++column) {
        float* target = out.data<float>() + (strip * across + column) * out.size(1);
        for (int64_t channel = 0; channel < 3; ++channel) {
          const auto& table = normalizer.channel(channel);
          for (int64_t y = 0; y < patch; ++y) {
            const uint8_t* source = picture + (strip % down * patch + y) * pictures.stride(1) +
                                    column * patch * pictures.stride(2) + channel;
            for (int64_t x = 0; x < patch; ++x) *target++ = table[source[x * pictures.stride(2)]];
          }
        }
      }
    }
  });
  return out;
}

nlohmann::json parse_processor_json(const std::string& text, const std::string& where) {
  if (json_nests_too_deeply(text)) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{} is nested too deeply; download the model again", where));
  }
  nlohmann::json config = nlohmann::json::parse(text, nullptr, false);
  if (!config.is_object()) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{} is not a JSON object; download the model again", where));
  }
  return config;
}

namespace {

// The flag, or true where it is absent.
bool true_unless_said(const nlohmann::json& config, const char* key, const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return true;
  if (!found->is_boolean()) {
    throw Error(ErrorKind::bad_input, fmt::format("{}: {} must be true or false", where, key));
  }
  return found->get<bool>();
}

}  // namespace

void check_processor_keys(const nlohmann::json& config, const std::string& where) {
  const auto refuse = [&](const char* key, const std::string& value, const char* known) {
    throw Error(ErrorKind::unsupported,
                fmt::format("{}: {} is {}; kinora has {}", where, key, value, known));
  };
  for (const char* key : {"do_resize", "do_rescale"}) {
    if (!true_unless_said(config, key, where)) refuse(key, "false", "true");
  }
  const auto number = [&](const char* key, double known, double tolerance, const char* name) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) return;
    if (!found->is_number()) {
      throw Error(ErrorKind::bad_input, fmt::format("{}: {} must be a number", where, key));
    }
    const double value = found->get<double>();
    if (std::abs(value - known) > tolerance) refuse(key, fmt::format("{}", value), name);
  };
  number("rescale_factor", 1.0 / 255, 1e-7, "1/255");
  number("resample", 3, 0, "3 (bicubic)");
}

PixelNormalizer normalizer_from(const nlohmann::json& config, const std::array<float, 3>& mean,
                                const std::array<float, 3>& deviation, const std::string& where) {
  const auto read = [&](const char* key, const std::array<float, 3>& fallback, bool divisor) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) return fallback;
    std::array<float, 3> values{};
    bool good = found->is_array() && found->size() == 3;
    for (size_t i = 0; good && i < 3; ++i) {
      good = (*found)[i].is_number();
      if (good) values[i] = (*found)[i].get<float>();
      good = good && std::isfinite(values[i]) && (!divisor || values[i] > 0);
    }
    if (!good) {
      throw Error(ErrorKind::bad_input, fmt::format("{}: {} must be three {}numbers", where, key,
                                                    divisor ? "positive " : ""));
    }
    return values;
  };
  const std::array<float, 3> own_mean = read("image_mean", mean, false);
  const std::array<float, 3> own_deviation = read("image_std", deviation, true);
  if (!true_unless_said(config, "do_normalize", where)) {
    return PixelNormalizer({0, 0, 0}, {1, 1, 1});
  }
  return PixelNormalizer(own_mean, own_deviation);
}

int64_t positive_integer(const nlohmann::json& config, const char* key, int64_t fallback,
                         const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return fallback;
  const double value = found->is_number() ? found->get<double>() : 0;
  if (!(value >= 1 && value <= 2147483648.0) || value != std::floor(value)) {
    throw Error(ErrorKind::bad_input, fmt::format("{}: {} must be a positive whole number, not {}",
                                                  where, key, found->dump().substr(0, 40)));
  }
  return static_cast<int64_t>(value);
}

}  // namespace kinora
