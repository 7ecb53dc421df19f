// What was read and said so far, in the order of the rows in memory: text tokens and the places of
// visual items. Only ever appended to or cut back, so a point to come back to is one number,
// however long the conversation is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"

namespace kinora {

// A list of runs as one sequence of items: ids, and −1 − n for visual item n.
std::vector<int64_t> flatten(std::span<const PromptRun> runs);

class Transcript {
 public:
  // Appends what has come into memory.
  void add(const PromptRun& run);
  // The answer under way writes its tokens here as they come into memory; `end_answer` appends
  // them.
  std::vector<int32_t>& text() { return text_; }
  const std::vector<int32_t>& text() const { return text_; }
  void end_answer();

  // A point to come back to.
  struct Point {
    size_t items = 0;
    size_t text = 0;
    size_t visuals = 0;
  };
  Point here() const { return {items_.size(), text_.size(), visuals_}; }
  void go_back(const Point& point);

  bool has_seen() const { return visuals_ > 0; }  // anything visual
  // How many of the first items are those of `wanted`.
  size_t common(std::span<const int64_t> wanted) const;

 private:
  std::vector<int64_t> items_;
  std::vector<int32_t> text_;  // the text tokens among them, and those of an answer under way
  size_t known_text_ = 0;      // of these, among the items
  size_t visuals_ = 0;
};

}  // namespace kinora
