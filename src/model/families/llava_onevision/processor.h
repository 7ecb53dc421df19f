// The image and video processor of LLaVA-OneVision and LLaVA-Video: square frames, pictures tiled
// by the best of a list of resolutions, and how many tokens each becomes. Equal to Hugging Face's
// LlavaOnevisionProcessor; LLaVA-Video's pooling and newlines follow the keys of its own config.
// Used by llava_onevision.cc.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/context.h"
#include "base/file.h"
#include "base/tensor.h"
#include "model/vision/processor_pixels.h"
#include "model/visual_plan.h"

namespace kinora {

enum class VideoPooling { bilinear, average, max };
// Where newline tokens stand: after the video, after every row of cells, every frame, nowhere.
enum class VideoNewline { one_token, grid, frame, none };

// How one tiled picture becomes tokens. All tiles but the whole picture form one grid of cells
// (tower patches); padding is cut off it, too large a grid is shrunk, a newline ends every row.
struct PictureLayout {
  Size best;    // pixels of all tiles together
  Size inside;  // the resized picture within them; the rest is black padding
  Size tiles;   // across and down, besides the tile that shows the whole picture
  Size cells;   // of the whole grid
  Size first;   // the first column and row that are kept
  Size kept;    // columns and rows that are kept
  Size shrunk;  // the kept grid after bilinear shrinking; equal to `kept` when it is small enough
  int64_t tokens = 0;  // of the whole picture: base tile, rows, newlines
};

class LlavaProcessor {
 public:
  struct Config {
    int64_t side = 384;     // of a tile or frame, pixels
    int64_t patch = 14;     // of the tower
    int64_t max_tiles = 9;  // N of anyres_max_N
    std::vector<Size> pinpoints;
    VideoPooling pooling = VideoPooling::bilinear;
    int64_t pool_stride = 2;
    VideoNewline newline = VideoNewline::one_token;

    int64_t grid() const { return side / patch; }  // cells along a tile
    int64_t pooled() const;                        // cells along a pooled frame
  };

  LlavaProcessor(Config config, const PixelNormalizer& normalizer)
      : config_(std::move(config)), normalizer_(normalizer) {}

  // The settings in a model directory.
  static LlavaProcessor read(const FileSystem& files, const std::string& directory);
  // The contents of config.json and preprocessor_config.json; `directory` for errors.
  static LlavaProcessor parse(const std::string& model_config,
                              const std::string& preprocessor_config, const std::string& directory);

  const Config& config() const { return config_; }

  // A video wants square frames. A picture comes in its own size (`tiles` does the rest), or
  // smaller by a whole number when it is over 32 megapixels.
  VisualPlan plan(const VisualSource& source) const;

  PictureLayout layout(Size picture) const;

  // One picture u8 [height, width, 3] → tiles u8 [n, side, side, 3]: alone, the whole picture and
  // then the tiles of its layout, row by row; among several, padded to a square with the mean
  // colour. `plan` is that of the picture.
  Tensor tiles(const Context& context, const VisualPlan& plan, ConstTensorView picture) const;

  // Tiles or frames u8 [n, side, side, 3] → f32 [n · grid², 3 · patch²].
  Tensor patches(const Context& context, ConstTensorView tiles,
                 const PatchFormat& format = {}) const;

 private:
  Config config_;
  PixelNormalizer normalizer_;
};

}  // namespace kinora
