// What a rule is compared with at an equal number of tokens.
#include <algorithm>

#include "engine/tokens/policies.h"

namespace kinora {
namespace {

// A number in [0, 1) that looks random, the same in every run.
float noise(uint64_t number) {
  number += 0x9e3779b97f4a7c15;  // splitmix64
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
  number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
  return static_cast<float>((number ^ (number >> 31)) >> 40) * 0x1p-24f;
}

class Dice final : public TokenJudge {
 public:
  std::vector<float> scores(const Context&, ConstTensorView tokens, int64_t, int64_t) override {
    std::vector<float> scores(static_cast<size_t>(tokens.size(0)));
    for (float& score : scores) score = noise(thrown_++);
    return scores;
  }

 private:
  uint64_t thrown_ = 0;
};

class RandomTokens final : public TokenRule {
 public:
  std::string_view name() const override { return "random"; }
  std::unique_ptr<TokenJudge> begin(int64_t) const override { return std::make_unique<Dice>(); }
};

// Units of a group in the order in which halving fills it: first, middle, quarters … Whole units
// stay, and part of the last one that there is room for.
class Spread final : public TokenJudge {
 public:
  explicit Spread(int64_t tokens_per_unit) : unit_(tokens_per_unit) {}

  std::vector<float> scores(const Context&, ConstTensorView, int64_t units, int64_t) override {
    int bits = 0;
    while ((int64_t{1} << bits) < units) ++bits;
    std::vector<float> scores;
    for (int64_t unit = 0; unit < units; ++unit) {
      int64_t reversed = 0;
      for (int bit = 0; bit < bits; ++bit) reversed |= (unit >> bit & 1) << (bits - 1 - bit);
      scores.insert(scores.end(), static_cast<size_t>(unit_), static_cast<float>(-reversed));
    }
    return scores;
  }

 private:
  const int64_t unit_;
};

class WholeFrames final : public TokenRule {
 public:
  std::string_view name() const override { return "frames"; }
  std::unique_ptr<TokenJudge> begin(int64_t tokens_per_unit) const override {
    return std::make_unique<Spread>(tokens_per_unit);
  }
};

}  // namespace

TokenPolicy random_tokens_policy() {
  return token_share_policy(std::make_shared<RandomTokens>(),
                            "tokens drawn at random go on, the same in every run: a control");
}

TokenPolicy whole_frames_policy() {
  return token_share_policy(std::make_shared<WholeFrames>(),
                            "whole steps, evenly spread, go on: a control");
}

}  // namespace kinora
