#include "engine/transcript.h"

#include <algorithm>

namespace kinora {

std::vector<int64_t> flatten(std::span<const PromptRun> runs) {
  std::vector<int64_t> items;
  for (const PromptRun& run : runs) {
    if (run.visual >= 0) items.push_back(-1 - int64_t{run.visual});
    items.insert(items.end(), run.ids.begin(), run.ids.end());
  }
  return items;
}

void Transcript::add(const PromptRun& run) {
  const std::vector<int64_t> items = flatten(std::span(&run, 1));
  items_.insert(items_.end(), items.begin(), items.end());
  text_.insert(text_.end(), run.ids.begin(), run.ids.end());
  known_text_ = text_.size();
  visuals_ += run.visual >= 0;
}

void Transcript::end_answer() {
  items_.insert(items_.end(), text_.begin() + static_cast<int64_t>(known_text_), text_.end());
  known_text_ = text_.size();
}

void Transcript::go_back(const Point& point) {
  items_.resize(point.items);
  text_.resize(point.text);
  known_text_ = point.text;
  visuals_ = point.visuals;
}

size_t Transcript::common(std::span<const int64_t> wanted) const {
  const size_t count = std::min(items_.size(), wanted.size());
  const auto end = items_.begin() + static_cast<int64_t>(count);
  return static_cast<size_t>(std::mismatch(items_.begin(), end, wanted.begin()).first -
                             items_.begin());
}

}  // namespace kinora
