#include "attention/policies/online_top_k.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

namespace kinora {
namespace {

constexpr std::array<std::string_view, 4> names = {"exact", "tournament", "threshold", "hybrid"};

// Of equal scores the later block is the weaker one.
bool weaker(const BlockScore& a, const BlockScore& b) {
  return a.score != b.score ? a.score < b.score : a.block > b.block;
}

// NaN compares false with everything.
bool worth(float score) { return score > -std::numeric_limits<float>::infinity(); }

}  // namespace

void ExactTopK::find_weakest() {
  for (size_t i = weakest_ = 0; i < slots_.size(); ++i) {
    if (weaker(slots_[i], slots_[weakest_])) weakest_ = i;
  }
}

bool ExactTopK::offer(BlockScore block, BlockScore& rejected) {
  if (static_cast<int64_t>(slots_.size()) < k_) {
    slots_.push_back(block);
    if (static_cast<int64_t>(slots_.size()) == k_) find_weakest();
    return false;
  }
  rejected = block;
  if (k_ == 0 || !weaker(slots_[weakest_], block)) return true;
  std::swap(slots_[weakest_], rejected);
  find_weakest();
  return true;
}

TournamentTopK::TournamentTopK(int64_t k) : k_(static_cast<size_t>(k)) {
  width_ = std::bit_ceil(std::max<size_t>(k_, 1));
}

void TournamentTopK::replay(size_t leaf) {
  const auto winner_at = [&](size_t node) {
    if (node < width_) return winners_[node];
    const size_t place = node - width_;
    return place < k_ ? static_cast<int32_t>(place) : -1;
  };
  for (size_t node = (width_ + leaf) / 2; node >= 1; node /= 2) {
    const int32_t a = winner_at(2 * node);
    const int32_t b = winner_at(2 * node + 1);
    const bool left = b < 0 || (a >= 0 && weaker(leaves_[static_cast<size_t>(a)],
                                                 leaves_[static_cast<size_t>(b)]));
    winners_[node] = left ? a : b;
  }
}

bool TournamentTopK::offer(BlockScore block, BlockScore& rejected) {
  if (size_ < k_) {
    if (leaves_.empty()) leaves_.resize(k_);
    leaves_[size_++] = block;
    if (size_ == k_) {
      winners_.assign(width_, -1);
      for (size_t leaf = 0; leaf < k_; leaf += 2) replay(leaf);
    }
    return false;
  }
  rejected = block;
  if (k_ == 0) return true;
  const size_t root = width_ > 1 ? static_cast<size_t>(winners_[1]) : 0;
  if (!weaker(leaves_[root], block)) return true;
  std::swap(leaves_[root], rejected);
  replay(root);
  return true;
}

double inverse_erf(double y) {
  if (y <= -1) return -std::numeric_limits<double>::infinity();
  if (y >= 1) return std::numeric_limits<double>::infinity();
  // A closed form good to three digits (Winitzki), then Newton on erf(x) − y = 0, whose derivative
  // is 2/√π · exp(−x²). In the tails erfc keeps the digits that 1 − erf would lose.
  constexpr double a = 0.147;
  const double log = std::log((1 - y) * (1 + y));
  const double half = 2 / (std::numbers::pi * a) + log / 2;
  double x = std::copysign(std::sqrt(std::sqrt(half * half - log / a) - half), y);
  for (int step = 0; step < 2; ++step) {
    const double error =
        x > 0.5 ? (1 - y) - std::erfc(x) : (x < -0.5 ? std::erfc(-x) - (1 + y) : std::erf(x) - y);
    // Halley's term keeps the step short where the curve bends.
    const double slope = error * std::sqrt(std::numbers::pi) / 2 * std::exp(x * x);
    x -= slope / (1 + x * slope);
  }
  return x;
}

double acceptance_threshold(double mean, double deviation, int64_t slots, int64_t remaining) {
  if (slots >= remaining) return -std::numeric_limits<double>::infinity();
  if (slots <= 0) return std::numeric_limits<double>::infinity();
  const double p = 1 - static_cast<double>(slots) / static_cast<double>(remaining);
  return std::numbers::sqrt2 * deviation * inverse_erf(2 * p - 1) + mean;
}

void ThresholdTopK::scan(float score) {
  if (worth(score)) {
    ++count_;
    const double distance = static_cast<double>(score) - mean_;
    mean_ += distance / static_cast<double>(count_);
    squares_ += distance * (static_cast<double>(score) - mean_);
  }
  --remaining_;
}

bool ThresholdTopK::offer(BlockScore block) {
  const int64_t slots = k_ - static_cast<int64_t>(kept_.size());
  if (slots <= 0) return false;
  // The block under way has been scanned and is still one of those that may take a slot.
  const double deviation = count_ > 1 ? std::sqrt(squares_ / static_cast<double>(count_)) : 0;
  const double threshold = acceptance_threshold(mean_, deviation, slots, remaining_ + 1);
  if (!(static_cast<double>(block.score) > threshold)) return false;
  kept_.push_back(block);
  return true;
}

std::string_view top_k_name(TopKMethod method) { return names[static_cast<size_t>(method)]; }

OnlineTopK::OnlineTopK(TopKMethod method, int64_t k, int64_t exact, int64_t blocks)
    : method_(method),
      exact_(method == TopKMethod::exact    ? k
             : method == TopKMethod::hybrid ? std::min(k, exact)
                                            : 0),
      tournament_(method == TopKMethod::tournament ? k : 0),
      threshold_(method == TopKMethod::threshold ? k
                 : method == TopKMethod::hybrid  ? k - std::min(k, exact)
                                                 : 0,
                 blocks) {}

void OnlineTopK::offer(int32_t block, float score) {
  const bool estimates = method_ == TopKMethod::threshold || method_ == TopKMethod::hybrid;
  if (estimates) threshold_.scan(score);
  if (!worth(score)) return;
  BlockScore rejected{block, score};
  switch (method_) {
    case TopKMethod::exact:
      exact_.offer({block, score}, rejected);
      break;
    case TopKMethod::tournament:
      tournament_.offer({block, score}, rejected);
      break;
    case TopKMethod::threshold:
      threshold_.offer(rejected);
      break;
    case TopKMethod::hybrid:
      if (exact_.offer({block, score}, rejected)) threshold_.offer(rejected);
      break;
  }
}

std::vector<BlockScore> OnlineTopK::take() const {
  std::vector<BlockScore> kept;
  for (const auto part : {exact_.kept(), tournament_.kept(), threshold_.kept()}) {
    kept.insert(kept.end(), part.begin(), part.end());
  }
  return kept;
}

}  // namespace kinora
