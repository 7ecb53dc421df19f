// Drafts by looking back: where the last few tokens occurred before, whatever followed them is
// guessed to follow again. Needs no weights; pays off when an answer repeats the question, a
// subtitle or itself. A guess costs nothing to make and something to check, so every one is
// compared with what came, checked or not, and only those worth checking are proposed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "generate/draft_pace.h"
#include "generate/drafter.h"

namespace kinora {

struct NgramOptions {
  int64_t tokens = 8;  // the longest guess
  int64_t match = 3;   // tokens that must have stood there before; then fewer, down to `least`
  int64_t least = 2;
  bool adapt = true;
};

// How often something came true, older cases fading.
class HitRate {
 public:
  void note(bool hit);
  double at() const { return hits_ / cases_; }

 private:
  double hits_ = 0.5, cases_ = 2;  // as if two cases had been seen: one in four comes true
};

class NgramDrafter final : public Drafter {
 public:
  explicit NgramDrafter(const NgramOptions& options = {});

  void start(const DraftTarget& target) override;
  Draft propose(std::span<const int32_t> text, int64_t most, int64_t deepest) override;
  void learn(const CheckedDraft& checked) override;
  double plain_seconds() const override { return pace_ ? pace_->costs().pass(1) : 0; }

  // How likely the first `count` guesses after a run of this length are right, each with all before
  // it.
  std::vector<double> confidences(int64_t match, int64_t count) const;

 private:
  // Ends of runs by a hash of their tokens; the latest run of each kind.
  using Index = std::unordered_map<uint64_t, int64_t>;
  static uint64_t hash(std::span<const int32_t> tokens);

  void follow(std::span<const int32_t> text);
  void compare(std::span<const int32_t> text);
  void look_back(std::span<const int32_t> text);

  NgramOptions options_;
  std::vector<Index> indexes_;  // by length, from `least`
  std::vector<int32_t> known_;  // the text that the indexes cover
  // What followed the last tokens of the known text, the longest guess; empty: they were new.
  std::vector<int32_t> guess_;
  int64_t match_ = 0;           // tokens that it rests on
  std::vector<HitRate> first_;  // a guess's first token, by the length of the match, from `least`
  HitRate further_;             // each further one after one that was right
  std::optional<DraftPace> pace_;  // from the first answer on, if it adapts
};

}  // namespace kinora
