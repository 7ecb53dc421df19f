// A tree of guesses as it grows: level by level below the newest token, always on from its
// likeliest leaves, and cut in the end to the likeliest nodes of all. A node's confidence is that
// of its whole path, so no child is ever kept without its parent. Used by the drafters that have a
// model (draft_pace.h).
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "generate/drafter.h"

namespace kinora {

// A guess of one token.
struct Guess {
  int32_t token = 0;
  float log_probability = 0;
};

// How large trees may be: written total-depth-width, 30-4-8.
struct TreeShape {
  int64_t total = 30;  // tokens that are checked together, the newest one included
  int64_t depth = 4;   // times that the draft goes on from its guesses
  int64_t width = 8;   // guesses it goes on from, and followers of each
  auto operator<=>(const TreeShape&) const = default;
};

class DraftTree {
 public:
  struct Node {
    int32_t token = 0;
    int32_t parent = -1;  // −1: the newest token
    int32_t depth = 1;
    float confidence = 0;  // log-probability of the path
  };

  // Followers of a node (−1: of the newest token), which become the deepest level.
  void add(int32_t parent, std::span<const Guess> guesses);

  const std::vector<Node>& nodes() const { return nodes_; }
  // The likeliest nodes of the deepest level, at most `width`, in the order they were added.
  std::vector<int32_t> frontier(int64_t width) const;
  // These nodes and all above them, in the order they were added.
  std::vector<int32_t> with_ancestors(std::span<const int32_t> nodes) const;
  // The place among `nodes`, which have all their ancestors, of each one's parent; −1: the newest
  // token.
  std::vector<int32_t> parents_among(std::span<const int32_t> nodes) const;
  // The nodes that a tree of this width, no more than the tree's own, would have had, as far as
  // they are here.
  std::vector<Node> narrowed(int64_t width) const;
  // All nodes, or the likeliest so many, likeliest first; of equals the earlier one.
  std::vector<int32_t> ranked() const { return ranked(std::ssize(nodes_)); }
  std::vector<int32_t> ranked(int64_t most) const;
  // The first `count` of these as a draft.
  Draft best(std::span<const int32_t> ranking, int64_t count) const;

 private:
  std::vector<Node> nodes_;
};

}  // namespace kinora
