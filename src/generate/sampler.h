// Picks the next token from a row of logits. The order of the steps is Hugging Face's: repetition
// penalty, temperature, top-k, top-p, min-p. The same seed gives the same tokens everywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/context.h"
#include "base/random.h"
#include "base/tensor.h"

namespace kinora {

struct SamplingOptions {
  double temperature = 0;         // 0 is greedy: always the most likely token
  int64_t top_k = 0;              // 0 keeps all
  double top_p = 1;               // 1 keeps all
  double min_p = 0;               // 0 keeps all
  double repetition_penalty = 1;  // 1 does nothing
  uint64_t seed = 0;
};

// Logits of one token that are sooner copied from a GPU than ranked there.
constexpr int64_t few_logits = 8192;

// Throws a usage error that names the first value out of its range.
void check_sampling(const SamplingOptions& options);

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);

  // `logits` is used as scratch. `context` is every token so far, prompt included. Ties go to the
  // lowest id, as argmax does.
  int32_t pick(std::span<float> logits, std::span<const int32_t> context);
  // The same from a row of logits [n] where it lies. From a GPU only the candidates that matter are
  // fetched, as long as the choice depends on a few of them.
  int32_t pick(const Context& where, TensorView row, std::span<const int32_t> context);
  // Always the largest logit, whatever came before: the caller may look for it directly.
  bool takes_the_largest() const;

  // The distribution that pick draws from: (token, probability), most likely first. For greedy
  // options it is one token with probability 1.
  struct Candidate {
    int32_t token = 0;
    double probability = 0;
  };
  std::vector<Candidate> distribution(std::span<float> logits, std::span<const int32_t> context);

 private:
  class Ranking;
  // How many of the likeliest candidates may be drawn, and their weight.
  struct Kept {
    size_t count = 0;
    double mass = 0;
  };
  // Candidates weighted by exp((logit − largest) / temperature) and cut to the top k.
  Ranking rank(std::span<float> logits, std::span<const int32_t> context);
  // What top-p and min-p leave; `mass` is the weight of all that top-p counts.
  Kept narrow(Ranking& ranking, double mass) const;
  // The candidate at this share of the weight; nothing if it is further down.
  static std::optional<int32_t> walk(Ranking& ranking, const Kept& kept, double place);
  int32_t draw(Ranking& ranking, const Kept& kept);
  std::optional<int32_t> pick_on_gpu(const Context& where, ConstTensorView logits);
  void penalise(std::span<float> logits, std::span<const int32_t> context);

  SamplingOptions options_;
  Random random_;
  std::optional<double> drawn_;  // a random number that was not used yet
  std::vector<uint8_t> seen_;
};

}  // namespace kinora
