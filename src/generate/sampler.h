// Picks the next token from a row of logits. The order of the steps is Hugging Face's: repetition
// penalty, temperature, top-k, top-p, min-p. The same seed gives the same tokens everywhere.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"

namespace kinora {

struct SamplingOptions {
  double temperature = 0;         // 0 is greedy: always the most likely token
  int64_t top_k = 0;              // 0 keeps all
  double top_p = 1;               // 1 keeps all
  double min_p = 0;               // 0 keeps all
  double repetition_penalty = 1;  // 1 does nothing
  uint64_t seed = 0;
};

// Throws a usage error that names the first value out of its range.
void check_sampling(const SamplingOptions& options);

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);

  // `logits` is used as scratch. `context` is every token so far, prompt included. Ties go to the
  // lowest id, as argmax does.
  int32_t pick(std::span<float> logits, std::span<const int32_t> context);

  // The distribution that pick draws from: (token, probability), most likely first. For greedy
  // options it is one token with probability 1.
  struct Candidate {
    int32_t token = 0;
    double probability = 0;
  };
  std::vector<Candidate> distribution(std::span<float> logits, std::span<const int32_t> context);

 private:
  void penalise(std::span<float> logits, std::span<const int32_t> context);

  SamplingOptions options_;
  Random random_;
  std::vector<uint8_t> seen_;
};

}  // namespace kinora
