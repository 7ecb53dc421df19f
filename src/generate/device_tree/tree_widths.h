// Whether trees that grow at once, without anybody looking on, should be as wide as they may be or
// chains: what lies between has never been the best of them. What a width costs, and the pass that
// checks its guesses, is measured. What a chain would bring is read off wide trees, which hold it.
// Knows no clock. Used by DraftPace.
#pragma once

#include <cstdint>
#include <vector>

#include "generate/draft_costs.h"
#include "generate/draft_tree.h"

namespace kinora {

class TreeWidths {
 public:
  explicit TreeWidths(const TreeShape& shape);

  // The width of the next tree.
  int64_t next();
  // A tree of that width has taken this long; `usual` if the next will take as long.
  void note(int64_t width, double seconds, bool usual, const DraftTree& tree,
            const DraftCosts& costs);
  // And the pass after it.
  void note_pass(int64_t width, double seconds);

 private:
  struct Width {
    int64_t width = 1;
    double seconds = 0;  // of a tree; 0: not known
    double pass = 0;     // seconds of what checks its guesses; 0: not known
    double rate = 0;     // tokens a second that it promises
    int64_t passes = 0;
    int64_t since = 0;  // trees of other widths since the last

    bool known() const;
  };
  void judge(Width& one, const DraftTree& tree, const DraftCosts& costs) const;

  TreeShape shape_;
  std::vector<Width> widths_;  // widest first
};

}  // namespace kinora
