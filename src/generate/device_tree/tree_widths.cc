#include "generate/device_tree/tree_widths.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kinora {
namespace {

constexpr double newest = 0.1;          // the share of the newest promise
constexpr double fading = 0.97;         // of what came true, with each later step
constexpr int64_t first_steps = 3;      // that are measured before a width is judged by them
constexpr int64_t most_first = 16;      // trees until then; what never becomes usual is left alone
constexpr int64_t longest_unused = 64;  // trees until a width is tried again
constexpr double outlier = 3;           // times what was expected: something else took the time
constexpr double fall = 0.3, rise = 0.1;  // the share of what took less, and of what took longer

// What took long may have had to wait; what was quick shows what is possible, at first above all.
void take(double& known, double seconds, bool first) {
  if (known == 0 || (first && seconds < known)) known = seconds;
  known += (seconds < known ? fall : rise) * (std::min(seconds, outlier * known) - known);
}

}  // namespace

TreeWidths::TreeWidths(const TreeShape& shape) {
  widths_.emplace_back();
  widths_.back().width = shape.width;
  if (shape.width == 1) return;
  widths_.emplace_back();
  widths_.back().width = 1;
}

double TreeWidths::Width::rate() const {
  if (steps == 0) return 0;
  return (1 + std::clamp(right / promised, 0.1, 1.5) * promise) / (drafting + passing);
}

int64_t TreeWidths::next() {
  // The widest is measured first: it shows what a chain would bring.
  for (const Width& one : widths_) {
    const bool known = one.steps >= first_steps || one.trees >= most_first;
    if (!known || one.since > longest_unused) return one.width;
  }
  return std::max_element(widths_.begin(), widths_.end(),
                          [](const Width& a, const Width& b) { return a.rate() < b.rate(); })
      ->width;
}

void TreeWidths::see(int64_t width, const DraftTree& tree, std::span<const double> confidences,
                     const DraftCosts& costs) {
  for (Width& one : widths_) {
    one.since = one.width == width ? 0 : one.since + 1;
    if (one.width == width) {
      ++one.trees;
      judge(one, confidences, costs);
    } else if (width == widths_[0].width) {
      std::vector<double> held;
      for (const DraftTree::Node& node : tree.narrowed(one.width)) {
        held.push_back(std::exp(double{node.confidence}));
      }
      std::sort(held.rbegin(), held.rend());
      held.resize(std::min(held.size(), confidences.size()));
      judge(one, held, costs);
    }
  }
}

void TreeWidths::judge(Width& one, std::span<const double> confidences,
                       const DraftCosts& costs) const {
  const double drafting = one.drafting > 0 ? one.drafting : widths_[0].drafting;
  const auto count = costs.worth_checking(confidences, drafting);
  const double promise = std::accumulate(confidences.begin(), confidences.begin() + count, 0.0);
  one.promise += (one.promise == 0 ? 1 : newest) * (promise - one.promise);
}

void TreeWidths::note(int64_t width, const Step& step) {
  for (Width& one : widths_) {
    if (one.width != width) continue;
    const bool first = ++one.steps <= first_steps;
    take(one.drafting, step.drafting, first);
    take(one.passing, step.passing, first);
    one.right = fading * one.right + step.right;
    one.promised = fading * one.promised + step.promised;
  }
}

}  // namespace kinora
