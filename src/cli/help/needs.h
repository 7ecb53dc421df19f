// What a question about a video needs of a machine's memory, model by model and minute by minute:
// the planner's own sums for published sizes, with no video and no weights at hand. The topic
// `needs` of `kinora help`; the README's table is its Markdown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kinora::cli {

struct Need {
  int64_t minutes = 0;
  int64_t frames = 0;
  int64_t tokens = 0;  // to prefill
  int64_t bytes = 0;   // of everything
  int64_t packed = 0;  // with keys and values in 8 bits
};

struct ModelNeeds {
  std::string model;
  std::string rule;  // which frames it looks at
  int64_t weight_bytes = 0;
  std::vector<Need> needs;
};

// Of 1280 × 720 at 30 frames a second, weights and rows in 16 bits, two decoding threads.
std::vector<ModelNeeds> model_needs(const std::vector<int64_t>& minutes);

std::string needs_text(bool markdown);

}  // namespace kinora::cli
