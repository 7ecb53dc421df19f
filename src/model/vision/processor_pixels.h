// Bytes to the normalised floats that vision towers were trained on. Used by the processors of all
// families.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// (byte / 255 − mean[channel]) / deviation[channel], as a table.
class PixelNormalizer {
 public:
  PixelNormalizer(const std::array<float, 3>& mean, const std::array<float, 3>& deviation);

  const std::array<float, 256>& channel(int64_t index) const {
    return tables_[static_cast<size_t>(index)];
  }
  const std::array<float, 3>& mean() const { return mean_; }

 private:
  std::array<float, 3> mean_;
  std::array<std::array<float, 256>, 3> tables_;
};

// How the rows of patches are wanted: f32 of their own width on the CPU; on a GPU any activation
// type, padded with zeros to `columns` (0: their own width).
struct PatchFormat {
  DType type = DType::f32;
  int64_t columns = 0;
};

// Pictures u8 [n, height, width, 3] → rows f32 [n · down · across, 3 · patch · patch] in raster
// order, channel by channel; a rest at the right and the bottom is left out, as an unpadded
// convolution leaves it.
Tensor raster_patches(const Context& context, ConstTensorView pictures, int64_t patch,
                      const PixelNormalizer& normalizer, const PatchFormat& format = {});

// The content of a JSON file of a model directory; `where` is its path, for errors.
nlohmann::json parse_processor_json(const std::string& text, const std::string& where);
// Throws unsupported, by name, for what kinora would do otherwise: a filter that is not bicubic
// (`resample`), bytes left as they are (`do_rescale`, `rescale_factor`), no resizing (`do_resize`).
void check_processor_keys(const nlohmann::json& config, const std::string& where);
// Mean and deviation from `image_mean` and `image_std`, with the given values where absent; 0 and 1
// where `do_normalize` is false.
PixelNormalizer normalizer_from(const nlohmann::json& config, const std::array<float, 3>& mean,
                                const std::array<float, 3>& deviation, const std::string& where);
// A positive integer up to 2^31, or `fallback` where absent.
int64_t positive_integer(const nlohmann::json& config, const char* key, int64_t fallback,
                         const std::string& where);

}  // namespace kinora
