#include "generate/device_tree/tree_widths.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kinora {
namespace {

constexpr double newest = 0.03;        // the share of the newest tree in what is usual
constexpr double fading = 0.97;        // of what came true, with each later step
constexpr int64_t first_steps = 3;     // that are measured before a width is judged by them
constexpr int64_t most_first = 16;     // trees until then; what never becomes usual is left alone
constexpr double nearly = 0.85;        // of the best rate
constexpr int64_t settled_steps = 24;  // until a width that is nearly as good is known well
// Trees until a width is tried again, and until one that is nearly as good is.
constexpr int64_t longest_unused = 64, nearly_unused = 16;
constexpr double outlier = 3;  // times what was expected: something else took the time

// The mean of the first so many, then of the later ones more and more. What a tree promises, and
// how many of its guesses are checked, varies much from step to step: a few steps say little.
void take(double& known, double value, int64_t count) {
  known += std::max(newest, 1 / static_cast<double>(count)) * (value - known);
}

// Of the first ones the quickest counts wholly: what took longer may have had to wait.
void take_time(double& known, double seconds, int64_t count) {
  if (count == 1 || (count <= first_steps && seconds < known)) known = seconds;
  take(known, std::min(seconds, outlier * known), count);
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
    if (one.steps < first_steps && one.trees < most_first) return one.width;
  }
  const Width& best =
      *std::max_element(widths_.begin(), widths_.end(),
                        [](const Width& a, const Width& b) { return a.rate() < b.rate(); });
  for (const Width& one : widths_) {
    if (&one == &best) continue;
    const bool close = one.rate() > nearly * best.rate();
    if (close && one.steps < std::min(best.steps, settled_steps)) return one.width;
    if (one.since > (close ? nearly_unused : longest_unused)) return one.width;
  }
  return best.width;
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
  take(one.promise, promise, ++one.judged);
}

void TreeWidths::note(int64_t width, const Step& step) {
  for (Width& one : widths_) {
    if (one.width != width) continue;
    ++one.steps;
    take_time(one.drafting, step.drafting, one.steps);
    take_time(one.passing, step.passing, one.steps);
    one.right = fading * one.right + step.right;
    one.promised = fading * one.promised + step.promised;
  }
}

}  // namespace kinora
