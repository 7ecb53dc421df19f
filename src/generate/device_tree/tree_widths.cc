#include "generate/device_tree/tree_widths.h"

#include <algorithm>
#include <cmath>

namespace kinora {
namespace {

constexpr double newest = 0.3;       // the share of the newest measurement
constexpr double outlier = 3;        // times what was expected: something else took the time
constexpr int64_t next_widest = 64;  // trees until one shows again what narrow ones miss

}  // namespace

TreeWidths::TreeWidths(const TreeShape& shape) : shape_(shape) {
  for (int64_t width = shape.width; width >= 1; width /= 2) widths_.push_back({width, 0, 0});
}

int64_t TreeWidths::next() {
  ++since_widest_;
  // The widest is measured first: it shows what the others would bring.
  for (const Width& one : widths_) {
    if (one.seconds == 0) return one.width;
  }
  if (since_widest_ > next_widest) return widths_[0].width;
  return std::max_element(widths_.begin(), widths_.end(),
                          [](const Width& a, const Width& b) { return a.rate < b.rate; })
      ->width;
}

void TreeWidths::note(int64_t width, double seconds, bool usual, const DraftTree& tree,
                      const DraftCosts& costs) {
  if (width == widths_[0].width) since_widest_ = 0;
  for (Width& one : widths_) {
    if (one.width > width) continue;
    if (one.width == width && usual) {
      const double now = one.seconds == 0 ? seconds : std::min(seconds, outlier * one.seconds);
      one.seconds += (one.seconds == 0 ? 1 : newest) * (now - one.seconds);
    }
    // A narrow tree shows what it brings itself, the widest what all would have brought.
    if (one.width == width || width == widths_[0].width) judge(one, tree, costs);
  }
}

void TreeWidths::judge(Width& one, const DraftTree& tree, const DraftCosts& costs) const {
  const std::vector<DraftTree::Node> nodes = tree.narrowed(one.width);
  std::vector<double> confidences;
  for (const DraftTree::Node& node : nodes) {
    confidences.push_back(std::exp(double{node.confidence}));
  }
  std::sort(confidences.rbegin(), confidences.rend());
  confidences.resize(std::min<size_t>(confidences.size(), static_cast<size_t>(shape_.total - 1)));
  const double rate = costs.best_of(confidences, one.seconds).rate;
  one.rate += (one.rate == 0 ? 1 : newest) * (rate - one.rate);
}

}  // namespace kinora
