// Published sizes of models whose files the benchmarks do not need: each as its config.json would
// describe it. Used by `kinora bench`.
#pragma once

#include <string>

#include "bench/vision_bench.h"
#include "model/config_files.h"

namespace kinora::cli {

struct ModelShape {
  ConfigFiles config;
  VisionBench vision;
};

// "qwen2.5-vl-7b", "qwen2.5-vl-3b" ("3b"), "qwen3-vl-8b", "llava-onevision-7b". Throws a usage
// error with the list.
ModelShape model_shape(const std::string& name);

}  // namespace kinora::cli
