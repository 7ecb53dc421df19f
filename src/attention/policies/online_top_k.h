// The strongest blocks of one query while its keys are scanned once, in order, without keeping all
// scores: an exact buffer (argmin on every change), a tournament tree (log k each), a threshold
// estimated from running mean and variance (constant time, approximate), and the hybrid of a small
// exact buffer and the threshold that MOMO uses. Blocks come in increasing order; of equal scores
// the earlier block stays; NaN and −∞ are never taken.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kinora {

struct BlockScore {
  int32_t block = 0;
  float score = 0;
  bool operator==(const BlockScore&) const = default;
};

// k slots and the place of the weakest.
class ExactTopK {
 public:
  explicit ExactTopK(int64_t k) : k_(k) {}

  // Takes the block or not. Whatever is not kept (the block itself, or the one it displaces) comes
  // back through `rejected`; returns whether there is one.
  bool offer(BlockScore block, BlockScore& rejected);
  std::span<const BlockScore> kept() const { return slots_; }

 private:
  void find_weakest();

  int64_t k_;
  std::vector<BlockScore> slots_;
  size_t weakest_ = 0;
};

// The same result: leaves hold the blocks, every inner node the weaker of its two children.
class TournamentTopK {
 public:
  explicit TournamentTopK(int64_t k);

  bool offer(BlockScore block, BlockScore& rejected);
  std::span<const BlockScore> kept() const { return {leaves_.data(), size_}; }

 private:
  void replay(size_t leaf);

  size_t k_;
  size_t size_ = 0;
  std::vector<BlockScore> leaves_;  // [k]
  std::vector<int32_t> winners_;    // [width]: node 1 is the root; −1 beats nothing
  size_t width_ = 1;                // leaves of the tree, a power of two
};

// x with erf(x) = y; ±∞ at ±1.
double inverse_erf(double y);

// The score that a normal variable exceeds with probability slots / remaining:
//   √2 · deviation · erf⁻¹(2p − 1) + mean,  p = 1 − slots / remaining
double acceptance_threshold(double mean, double deviation, int64_t slots, int64_t remaining);

// Accepts greedily whatever exceeds the threshold for the slots and blocks that remain.
class ThresholdTopK {
 public:
  // `blocks`: how many will be scanned in all.
  ThresholdTopK(int64_t k, int64_t blocks) : k_(k), remaining_(blocks) {}

  // Every scanned block moves the statistics, whether or not it is offered.
  void scan(float score);
  bool offer(BlockScore block);
  std::span<const BlockScore> kept() const { return kept_; }

 private:
  int64_t k_;
  int64_t remaining_;
  int64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // Σ (score − mean)²
  std::vector<BlockScore> kept_;
};

enum class TopKMethod : uint8_t { exact, tournament, threshold, hybrid };

std::string_view top_k_name(TopKMethod method);  // "exact", …

// One of the four, as MOMO asks for it. The hybrid keeps the `exact` strongest exactly and fills
// the other k − exact slots by threshold, also with what the exact buffer lets go.
class OnlineTopK {
 public:
  OnlineTopK(TopKMethod method, int64_t k, int64_t exact, int64_t blocks);

  void offer(int32_t block, float score);
  // Everything kept, in no particular order.
  std::vector<BlockScore> take() const;

 private:
  TopKMethod method_;
  ExactTopK exact_;
  TournamentTopK tournament_;
  ThresholdTopK threshold_;
};

}  // namespace kinora
