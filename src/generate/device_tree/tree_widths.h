// Whether trees that grow at once, without anybody looking on, should be as wide as they may be or
// chains: what lies between has never been the best of them. How long steps of either kind take is
// measured, and how many of the guesses they promise come true. What a chain would promise is also
// read off wide trees, which hold it. Knows no clock. Used by DraftPace.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generate/draft_costs.h"
#include "generate/draft_tree.h"

namespace kinora {

class TreeWidths {
 public:
  explicit TreeWidths(const TreeShape& shape);

  // The width of the next tree.
  int64_t next();
  // A tree of that width, and its guesses' probabilities, likeliest first.
  void see(int64_t width, const DraftTree& tree, std::span<const double> confidences,
           const DraftCosts& costs);
  // What became of it; not told where that took longer than it will again.
  struct Step {
    double drafting = 0;  // seconds, with all that belongs to it
    double passing = 0;   // and of the pass that checked its guesses
    double right = 0;     // guesses
    double promised = 0;  // of them
  };
  void note(int64_t width, const Step& step);

 private:
  struct Width {
    int64_t width = 1;
    double drafting = 0, passing = 0;  // seconds, usually
    double promise = 0;                // guesses of a tree that will be right, if one trusts them
    double right = 4, promised = 4;    // as if four promised guesses had come true
    int64_t trees = 0, steps = 0;      // grown, and those whose steps are known
    int64_t judged = 0;                // trees that say what it promises
    int64_t since = 0;                 // trees of other widths since the last

    double rate() const;  // tokens a second
  };
  void judge(Width& one, std::span<const double> confidences, const DraftCosts& costs) const;

  std::vector<Width> widths_;  // widest first
};

}  // namespace kinora
