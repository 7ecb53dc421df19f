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
  bool shares_cores = true;         // decoding and computing need the same cores
};

inline double expected_seconds(const Speed& speed, const Workload& work) {
  const auto tokens = static_cast<double>(work.tokens);
  const double operations = tokens * speed.token_operations +
                            tokens * work.rows * speed.attention_operations +
                            static_cast<double>(work.visual_tokens) * speed.vision_operations;
  const double computing = operations / speed.multiply_rate;
  const double decoding = work.pixels / speed.pixel_rate;
  return speed.shares_cores ? computing + decoding : std::max(computing, decoding);
}

}  // namespace kinora
