// Where the CPU seconds of decoding sampled frames go, measured stage by stage on one thread, and
// the two costs that bound any program: decoding what the samples need, and decoding everything.
// For bench_decode --profile.
#pragma once

#include <cstdint>
#include <string>

#include "ops/resize.h"

namespace kinora {

// CPU seconds.
struct StageCosts {
  double index = 0;
  double read = 0;  // the needed packets
  double decode = 0;
  double convert = 0;
  double decode_all = 0;  // every packet of the file, each picture thrown away
  int64_t samples = 0;
  int64_t needed = 0;  // packets
  int64_t all = 0;
};

StageCosts measure_stages(const std::string& file, double every, int size, ResizeFilter filter);

}  // namespace kinora
