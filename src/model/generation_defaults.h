// How the model's authors sample from it, according to generation_config.json. Greedy unless
// do_sample is set there. Read by config.cc, passed on in ModelInfo.
#pragma once

#include <cstdint>

namespace kinora {

struct GenerationDefaults {
  double temperature = 0;
  int64_t top_k = 0;
  double top_p = 1;
  double repetition_penalty = 1;
};

}  // namespace kinora
