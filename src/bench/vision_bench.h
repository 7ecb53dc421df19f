// The vision towers of the families with random weights on a GPU, from bytes to tokens. Used by
// shapes.cc, which knows which tower a model has.
#pragma once

#include <cstdint>

#include "base/context.h"
#include "model/config_files.h"

namespace kinora::cli {

struct VisionFigure {
  int64_t frames = 0, width = 0, height = 0, tokens = 0;
  double seconds = 0;
  double operations = 0;
};

// `shape` is the config of a model of the tower's family; the size is rounded to what it takes.
using VisionBench = VisionFigure (*)(const Context& context, const ConfigFiles& shape,
                                     int64_t frames, int64_t width, int64_t height);

VisionFigure bench_qwen_vision(const Context& context, const ConfigFiles& shape, int64_t frames,
                               int64_t width, int64_t height);
VisionFigure bench_qwen3_vision(const Context& context, const ConfigFiles& shape, int64_t frames,
                                int64_t width, int64_t height);
VisionFigure bench_siglip(const Context& context, const ConfigFiles& shape, int64_t frames,
                          int64_t width, int64_t height);

}  // namespace kinora::cli
