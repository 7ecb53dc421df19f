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

// Novel: of every group, one token after the other, each time the one that is furthest from all
// that were taken at its place, in the group or last before it. Places in the whole video,
// increasing. `closest` is how far the best ever was from the second.
inline std::vector<int64_t> slow_novel(const SlowVideo& video, int64_t group, double ratio,
                                       double& closest) {
  closest = std::numeric_limits<double>::infinity();
  const int64_t unit = video.tokens_per_unit, all = video.units() * unit;
  std::vector<int64_t> kept;
  for (int64_t first = 0; first < all; first += group * unit) {
    const int64_t end = std::min(all, first + group * unit);
    const auto share = static_cast<int64_t>(std::round(ratio * static_cast<double>(end - first)));
    const int64_t count = std::max(share, first == 0 ? unit : 1);
    std::vector<int64_t> taken;
    while (std::ssize(taken) < count) {
      int64_t best = -1;
      double furthest = 0, second = -1;
      for (int64_t i = first; i < end; ++i) {
        if (std::find(taken.begin(), taken.end(), i) != taken.end()) continue;
        double nearest = std::numeric_limits<double>::infinity();
        const auto compare = [&](int64_t other) {
          const double cosine = slow_cosine(video.token(i), video.token(other), video.hidden);
          nearest = std::min(nearest, 1 - cosine);
        };
        for (const int64_t other : taken) {
          if (other % unit == i % unit) compare(other);
        }
        for (auto last = kept.rbegin(); last != kept.rend(); ++last) {
          if (*last % unit != i % unit) continue;
          compare(*last);
          break;
        }
        if (best >= 0 && nearest <= furthest) {
          second = std::max(second, nearest);
          continue;
        }
        if (best >= 0) second = furthest;
        best = i;
        furthest = nearest;
      }
      if (std::isfinite(furthest)) closest = std::min(closest, furthest - second);
      taken.push_back(best);
    }
    std::sort(taken.begin(), taken.end());
    kept.insert(kept.end(), taken.begin(), taken.end());
  }
  return kept;
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
