#include "generate/device_tree/tree_widths.h"

#include <algorithm>
#include <cmath>

namespace kinora {
namespace {

constexpr double newest = 0.3;          // the share of the newest promise
constexpr int64_t first_passes = 3;     // that are measured before a width is judged by them
constexpr int64_t longest_unused = 64;  // trees until a width is tried again
constexpr double outlier = 3;           // times what was expected: something else took the time
constexpr double rise = 0.1;            // of what took longer than before

// What took long may have had to wait; what was quick shows what is possible.
void take(double& known, double seconds) {
  if (known == 0 || seconds < known) {
    known = seconds;
  } else {
    known += rise * (std::min(seconds, outlier * known) - known);
  }
}

}  // namespace

TreeWidths::TreeWidths(const TreeShape& shape) : shape_(shape) {
  widths_.emplace_back();
  widths_.back().width = shape.width;
  if (shape.width == 1) return;
  widths_.emplace_back();
  widths_.back().width = 1;
}

bool TreeWidths::Width::known() const { return seconds > 0 && passes >= first_passes; }

int64_t TreeWidths::next() {
  // The widest is measured first: it shows what a chain would bring.
  for (const Width& one : widths_) {
    if (!one.known() || one.since > longest_unused) return one.width;
  }
  return std::max_element(widths_.begin(), widths_.end(),
                          [](const Width& a, const Width& b) { return a.rate < b.rate; })
      ->width;
}

void TreeWidths::note(int64_t width, double seconds, bool usual, const DraftTree& tree,
                      const DraftCosts& costs) {
  for (Width& one : widths_) {
    one.since = one.width == width ? 0 : one.since + 1;
    if (one.width > width) continue;
    if (one.width == width && usual) take(one.seconds, seconds);
    // A chain shows what it brings itself, the widest what both would have brought.
    if (one.width == width || width == widths_[0].width) judge(one, tree, costs);
  }
}

void TreeWidths::note_pass(int64_t width, double seconds) {
  for (Width& one : widths_) {
    if (one.width != width) continue;
    take(one.pass, seconds);
    ++one.passes;
  }
}

void TreeWidths::judge(Width& one, const DraftTree& tree, const DraftCosts& costs) const {
  if (one.seconds == 0) return;
  std::vector<double> confidences;
  for (const DraftTree::Node& node : tree.narrowed(one.width)) {
    confidences.push_back(std::exp(double{node.confidence}));
  }
  std::sort(confidences.rbegin(), confidences.rend());
  confidences.resize(std::min<size_t>(confidences.size(), static_cast<size_t>(shape_.total - 1)));
  const DraftCosts::Worth worth = costs.best_of(confidences, one.seconds);
  const double pass = one.pass > 0 ? one.pass : costs.pass(1 + worth.count);
  const double rate = worth.tokens / (one.seconds + pass);
  one.rate += (one.rate == 0 ? 1 : newest) * (rate - one.rate);
}

}  // namespace kinora
