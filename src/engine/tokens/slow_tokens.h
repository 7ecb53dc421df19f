// The slow, obvious reference of which tokens go on: a video as a list of numbers, walked one token
// at a time in double precision. For tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/random.h"

namespace kinora::testing {

struct SlowVideo {
  int64_t tokens_per_unit = 1;
  int64_t hidden = 1;
  std::vector<float> values;  // [units, tokens of a unit, hidden]

  int64_t units() const { return std::ssize(values) / (tokens_per_unit * hidden); }
  const float* token(int64_t number) const { return values.data() + number * hidden; }

  static SlowVideo random(Random& random, int64_t units, int64_t tokens_per_unit, int64_t hidden) {
    SlowVideo video{tokens_per_unit, hidden, {}};
    for (int64_t i = 0; i < units * tokens_per_unit * hidden; ++i) {
      video.values.push_back(static_cast<float>(random.normal()));
    }
    return video;
  }
};

inline double slow_cosine(const float* a, const float* b, int64_t width) {
  double left = 0, right = 0, both = 0;
  for (int64_t i = 0; i < width; ++i) {
    left += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    right += static_cast<double>(b[i]) * static_cast<double>(b[i]);
    both += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return left == 0 || right == 0 ? 0 : both / std::sqrt(left * right);
}

// EVS: 1 − cosine to the token at the same place one unit earlier; the first unit before all.
inline std::vector<double> slow_changes(const SlowVideo& video) {
  std::vector<double> changes;
  for (int64_t i = 0; i < video.units() * video.tokens_per_unit; ++i) {
    changes.push_back(i < video.tokens_per_unit
                          ? std::numeric_limits<double>::infinity()
                          : 1 - slow_cosine(video.token(i), video.token(i - video.tokens_per_unit),
                                            video.hidden));
  }
  return changes;
}

// The same times 1 − cosine to the mean of the unit, where a unit has more than one token.
inline std::vector<double> slow_distinct(const SlowVideo& video) {
  std::vector<double> scores = slow_changes(video);
  const int64_t unit = video.tokens_per_unit;
  for (int64_t i = unit; unit > 1 && i < std::ssize(scores); ++i) {
    std::vector<float> mean(static_cast<size_t>(video.hidden));
    for (int64_t k = 0; k < video.hidden; ++k) {
      double sum = 0;
      for (int64_t token = i / unit * unit; token < (i / unit + 1) * unit; ++token) {
        sum += static_cast<double>(video.token(token)[k]);
      }
      mean[static_cast<size_t>(k)] = static_cast<float>(sum / static_cast<double>(unit));
    }
    scores[static_cast<size_t>(i)] *= 1 - slow_cosine(video.token(i), mean.data(), video.hidden);
  }
  return scores;
}

// Of the tokens that were left out of a group, how far the best is above the worst that stayed; 0
// or less where the best stayed. `kept` are places in the whole video, increasing.
inline double slow_mistake(const SlowVideo& video, int64_t group, const std::vector<double>& scores,
                           const std::vector<int64_t>& kept) {
  double mistake = -std::numeric_limits<double>::infinity();
  const int64_t all = std::ssize(scores), step = group * video.tokens_per_unit;
  for (int64_t first = 0; first < all; first += step) {
    double worst = std::numeric_limits<double>::infinity(), best = -worst;
    for (int64_t i = first; i < std::min(all, first + step); ++i) {
      const double score = scores[static_cast<size_t>(i)];
      if (std::binary_search(kept.begin(), kept.end(), i)) {
        worst = std::min(worst, score);
      } else {
        best = std::max(best, score);
      }
    }
    mistake = std::max(mistake, best - worst);
  }
  return mistake;
}

}  // namespace kinora::testing
