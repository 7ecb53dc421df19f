// How long a question will take before its answer begins: a guess from the number of operations
// and from how fast this machine multiplies and decodes. Deliberately rough.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kinora {

// What is to be done for a question.
struct Workload {
  int64_t tokens = 0;         // through the decoder
  int64_t visual_tokens = 0;  // that the vision tower gives
  double rows = 0;            // that a token attends to, on average
  double pixels = 0;          // of decoded pictures
};

// What a model asks of a machine and what the machine does in a second.
struct Speed {
  double token_operations = 0;      // of the decoder, for one token
  double attention_operations = 0;  // for one token and one row it attends to
  double vision_operations = 0;     // of the vision tower, for one visual token
  double multiply_rate = 1;         // operations a second that whole layers reach
  double pixel_rate = 1;            // decoded pixels a second, all cores together
  double step_seconds = 0;          // of one token of an answer
  bool shares_cores = true;         // decoding and computing need the same cores
};

// Seconds that each stage works for a question; stages may overlap.
struct StageSeconds {
  double decode = 0;
  double vision = 0;
  double prefill = 0;
};

inline StageSeconds expected_stages(const Speed& speed, const Workload& work) {
  const auto tokens = static_cast<double>(work.tokens);
  const double prefill =
      tokens * speed.token_operations + tokens * work.rows * speed.attention_operations;
  const double vision = static_cast<double>(work.visual_tokens) * speed.vision_operations;
  return {work.pixels / speed.pixel_rate, vision / speed.multiply_rate,
          prefill / speed.multiply_rate};
}

inline double expected_seconds(const Speed& speed, const StageSeconds& stages) {
  const double computing = stages.vision + stages.prefill;
  return speed.shares_cores ? computing + stages.decode : std::max(computing, stages.decode);
}

}  // namespace kinora
