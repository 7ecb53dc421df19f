#include "bench/vision_bench.h"

#include "bench/median_seconds.h"
#include "model/families/families.h"
#include "model/families/llava_onevision/siglip.h"
#include "model/families/qwen2_5_vl/tower.h"
#include "model/families/qwen3_vl/tower.h"
#include "model/vision/gpu_patches.h"

namespace kinora::cli {
namespace {

// Which numbers pixels become changes nothing in the work.
PixelNormalizer any_normalizer() { return PixelNormalizer({0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}); }

}  // namespace

VisionFigure bench_qwen_vision(const Context& context, const ConfigFiles& shape, int64_t frames,
                               int64_t width, int64_t height) {
  VisionFigure figure;
  figure.frames = frames;
  const PixelNormalizer normalizer = any_normalizer();
  const QwenVisionConfig v = read_qwen_vision(shape, family_of(shape).read(shape).decoder.hidden);
  const int64_t block = v.patch * v.merge;
  figure.width = width / block * block;
  figure.height = height / block * block;
  Tensor pixels(DType::u8, {frames, figure.height, figure.width, 3});
  for (int64_t i = 0; i < pixels.elements(); ++i) {
    pixels.data<uint8_t>()[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  }
  const QwenVisionTower tower(
      v, on_gpu(context, random_qwen_vision(context, v, DType::bf16), DType::bf16), DType::bf16);
  const int64_t rows = figure.height / v.patch, columns = figure.width / v.patch;
  const int64_t units = (frames + v.temporal_patch - 1) / v.temporal_patch;
  figure.seconds = median_seconds(context, 3, [&] {
    const auto patches = [&](int64_t first, int64_t count) {
      return gpu_patches(context, frames_of(pixels, v.temporal_patch, first, count),
                         {v.temporal_patch, v.merge, v.patch}, normalizer,
                         {DType::bf16, tower.patch_columns()});
    };
    const Tensor tokens = tower.encode(context, patches, units, rows, columns);
    figure.tokens = tokens.size(0);
  });
  const auto patches = static_cast<double>(units * rows * columns);
  const auto h = static_cast<double>(v.hidden);
  const auto full = static_cast<double>(v.full_layers.size());
  const double window = static_cast<double>(v.window / v.patch * (v.window / v.patch));
  const double each =
      static_cast<double>(v.layers) * (8 * h * h + 6 * h * static_cast<double>(v.intermediate)) +
      2 * h * static_cast<double>(tower.patch_columns()) +
      2 * (4 * h * h + h * static_cast<double>(v.output)) +
      4 * h *
          (full * static_cast<double>(rows * columns) +
           (static_cast<double>(v.layers) - full) * window);
  figure.operations = patches * each;
  return figure;
}

VisionFigure bench_qwen3_vision(const Context& context, const ConfigFiles& shape, int64_t frames,
                                int64_t width, int64_t height) {
  VisionFigure figure;
  figure.frames = frames;
  const PixelNormalizer normalizer = any_normalizer();
  const Qwen3VisionConfig v = read_qwen3_vision(shape, family_of(shape).read(shape).decoder);
  const int64_t block = v.patch * v.merge;
  figure.width = width / block * block;
  figure.height = height / block * block;
  const Tensor pixels = Tensor::zeros(DType::u8, {frames, figure.height, figure.width, 3});
  const Qwen3VisionTower tower(
      v, on_gpu(context, random_qwen3_vision(context, v, DType::bf16), DType::bf16), DType::bf16);
  const int64_t rows = figure.height / v.patch, columns = figure.width / v.patch;
  const int64_t units = (frames + v.temporal_patch - 1) / v.temporal_patch;
  figure.seconds = median_seconds(context, 3, [&] {
    const auto patches = [&](int64_t first, int64_t count) {
      return gpu_patches(context, frames_of(pixels, v.temporal_patch, first, count),
                         {v.temporal_patch, v.merge, v.patch}, normalizer,
                         {DType::bf16, tower.patch_columns()});
    };
    figure.tokens = tower.encode(context, patches, units, rows, columns).size(0);
  });
  const auto h = static_cast<double>(v.hidden);
  const double each =
      static_cast<double>(v.layers) * (8 * h * h + 4 * h * static_cast<double>(v.intermediate) +
                                       4 * h * static_cast<double>(rows * columns)) +
      2 * h * static_cast<double>(tower.patch_columns()) +
      static_cast<double>(1 + v.levels()) * 2 * (4 * h * h + h * static_cast<double>(v.output));
  figure.operations = static_cast<double>(units * rows * columns) * each;
  return figure;
}

VisionFigure bench_siglip(const Context& context, const ConfigFiles& shape, int64_t frames, int64_t,
                          int64_t) {
  VisionFigure figure;
  figure.frames = frames;
  const PixelNormalizer normalizer = any_normalizer();
  const SiglipConfig v = read_llava(shape).tower;
  figure.width = figure.height = v.image;
  const Tensor pixels = Tensor::zeros(DType::u8, {frames, v.image, v.image, 3});
  const SiglipTower tower(context, v,
                          on_gpu(context, random_siglip(context, v, DType::bf16), DType::bf16),
                          v.layers, DType::bf16);
  figure.seconds = median_seconds(context, 3, [&] {
    const Tensor patches = gpu_patches(context, pixels, {1, 1, v.patch}, normalizer,
                                       {DType::bf16, tower.patch_columns()});
    figure.tokens = tower.encode(context, patches).size(0);
  });
  const auto h = static_cast<double>(v.hidden);
  const auto grid = static_cast<double>(v.grid() * v.grid());
  figure.operations = static_cast<double>(frames) * grid * static_cast<double>(v.layers) *
                      (8 * h * h + 4 * h * static_cast<double>(v.intermediate) + 4 * h * grid);
  return figure;
}

}  // namespace kinora::cli
