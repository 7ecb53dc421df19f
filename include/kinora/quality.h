// Tested combinations of policies by name, for people who care about answers, not methods:
// exact (nothing approximated, the default), balanced and fast. Their accuracy, time and memory
// stand side by side in docs/results/presets.md.
#pragma once

#include <string>
#include <vector>

#include <kinora/api.h>
#include <kinora/engine.h>
#include <kinora/session.h>

namespace kinora {

struct Quality {
  std::string name;
  std::string summary;  // what it gives up, one line
  std::string attention;
  std::string tokens;  // visual ones that reach the decoder
  std::string retain;
  std::string rows;  // type of keys and values
  double frame_share = 1;
  double pixel_share = 1;
  double snap_share = 0;
  bool native_bf16 = false;
};

KINORA_API const std::vector<Quality>& qualities();

// Throws a usage error that lists the names.
KINORA_API const Quality& find_quality(const std::string& name);

// Sets what the preset decides and leaves everything else.
KINORA_API void apply_quality(const Quality& quality, EngineOptions& engine,
                              SessionOptions& session);

}  // namespace kinora
