// How a drafter that runs a model makes its proposals: a tree of guesses grows level by level while
// that pays, is cut to what is worth checking, and what became of it teaches what pays. Has the
// clock that DraftCosts lacks. Used by sparrow.h, pruned.h and ngram.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/device.h"
#include "base/policy/settings.h"
#include "generate/device_tree/device_tree.h"
#include "generate/device_tree/tree_widths.h"
#include "generate/draft_costs.h"
#include "generate/draft_tree.h"
#include "generate/drafter.h"

namespace kinora {

// What one session has learnt of the machine and the draft, for the next to begin with.
struct KnownPace {
  DraftCosts costs;
  TreeWidths widths;
};

class DraftPace {
 public:
  // Draft as much as pays, at most the shape; or always the whole shape. A level of one token is
  // taken to cost `level` of a plain pass until it was measured.
  DraftPace(const TreeShape& shape, bool adapt, Device device, double level);

  KnownPace known() const { return {costs_.for_other_text(), widths_}; }
  void begin_with(const KnownPace& known) {
    costs_ = known.costs;
    widths_ = known.widths;
  }

  // What may follow each of some leaves, and how many tokens had to run for that.
  struct Level {
    std::vector<std::vector<Guess>> followers;
    int64_t tokens = 0;
    bool usual = true;  // it took what such levels take
  };
  using RunLevel = std::function<Level(const DraftTree& tree, std::span<const int32_t> leaves)>;

  // A proposal: begin, grow if it says so, end; then the model's pass, and learn. Where
  // drafting is not possible yet, `wanted` says whether it would have begun.
  bool begin(bool possible);
  bool wanted() const { return wanted_; }
  // `first` may follow the newest token; `run` goes on from leaves of one level.
  Draft grow(std::span<const Guess> first, int64_t most, int64_t deepest, const RunLevel& run);
  // The same where a tree grows at once: `run` makes all of one of this shape.
  using RunWhole = std::function<GrownTree(const TreeShape& shape)>;
  Draft grow_whole(int64_t most, const RunWhole& run);
  // A chain of guesses that took no model to make: how many of them are worth checking. Confidences
  // are those of the whole chain so far.
  int64_t take(std::span<const double> confidences);
  void end();
  // `usual` if the pass took what such passes take.
  void learn(int64_t right, bool usual);

  // Adds to what is known of levels: `grow` does so, and who runs one outside of it.
  template <typename Run>
  Level timed(const Run& run) {
    const double began = now();
    Level level = run();
    usual_ = usual_ && level.usual;
    if (level.usual) costs_.note_level(level.tokens, now() - began);
    return level;
  }
  const DraftCosts& costs() const { return costs_; }

 private:
  static double now();
  // The guesses that may be checked, likeliest first.
  struct Ranking {
    std::vector<int32_t> nodes;
    std::vector<double> confidences;
  };
  Ranking rank(const DraftTree& tree, int64_t most) const;
  // What of a tree is worth checking.
  Draft choose(const DraftTree& tree, const Ranking& ranking);
  void choose_of(std::span<const double> confidences);

  TreeShape shape_;
  bool adapt_;
  DraftCosts costs_;
  TreeWidths widths_;
  // The proposal under way.
  bool wanted_ = false;
  bool tried_ = false;
  bool usual_ = true;  // growing took what it will take again
  int64_t width_ = 0;  // of a tree that grew at once; 0: it did not
  int64_t drafted_ = 0;
  double promised_ = 0;
  double began_ = 0, proposed_ = 0;  // on the clock
};

// Settings of drafters that have one: options with a `shape` and whether to `adapt`.
template <class Options>
Settings<Options>& add_pace_settings(Settings<Options>& settings) {
  const auto shape = [](auto field) {
    return [field](auto& options) -> auto& { return options.shape.*field; };
  };
  return settings
      .count("total", shape(&TreeShape::total), {2, 64},
             "the most tokens checked together, the newest one included")
      .count("depth", shape(&TreeShape::depth), {0, 16},
             "how often the draft goes on from its own guesses")
      .count("width", shape(&TreeShape::width), {1, 32},
             "guesses it goes on from, and followers of each; 1 drafts chains")
      .flag("adapt", &Options::adapt,
            "draft as much as pays on this machine, at most the above; 0: always all of it");
}

}  // namespace kinora
