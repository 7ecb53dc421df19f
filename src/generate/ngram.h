// Drafts by looking back: where the last few tokens occurred before, whatever followed them is
// guessed to follow again. Needs no weights; pays off when an answer repeats the question, a
// subtitle or itself.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "generate/drafter.h"

namespace kinora {

struct NgramOptions {
  int64_t tokens = 8;  // the longest guess
  int64_t match = 3;   // tokens that must have stood there before; then fewer, down to `least`
  int64_t least = 2;
};

class NgramDrafter final : public Drafter {
 public:
  explicit NgramDrafter(const NgramOptions& options = {});

  Draft propose(std::span<const int32_t> text, int64_t most, int64_t deepest) override;
  void learn(std::span<const int32_t> right, std::span<const Tensor> states) override;

 private:
  // Ends of runs by a hash of their tokens; the latest run of each kind.
  using Index = std::unordered_map<uint64_t, int64_t>;
  static uint64_t hash(std::span<const int32_t> tokens);

  NgramOptions options_;
  std::vector<Index> indexes_;  // by length, from `least`
  std::vector<int32_t> known_;  // the text that the indexes cover
  int64_t length_;              // of guesses; adapts to how often they are right
  int64_t proposed_ = 0;
};

}  // namespace kinora
