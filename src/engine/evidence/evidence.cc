#include "engine/evidence/evidence.h"

#include <algorithm>

namespace kinora {
namespace {

// Of the video that a span may have at most.
constexpr double longest_share = 0.05;
// Neighbours with this part of the peak's mass belong to it.
constexpr double grow_while = 0.2;
// Further spans have at least this part of the first one's mass.
constexpr double further_share = 0.5;

struct Found {
  size_t input = 0;
  int64_t first = 0;
  int64_t last = 0;  // included
  double mass = 0;
};

class Peaks {
 public:
  explicit Peaks(std::span<const InputMass> inputs) : inputs_(inputs) {
    for (const InputMass& input : inputs) taken_.emplace_back(input.units.size());
  }

  // The highest unit that no earlier span has, grown; an empty one if nothing is left.
  Found next() {
    Found peak;
    double highest = 0;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      for (int64_t unit = 0; unit < std::ssize(inputs_[i].units); ++unit) {
        if (!free(i, unit) || mass(i, unit) <= highest) continue;
        highest = mass(i, unit);
        peak = {i, unit, unit, highest};
      }
    }
    while (highest > 0 && peak.last - peak.first + 1 < inputs_[peak.input].longest) {
      const double before = part(peak.input, peak.first - 1);
      const double after = part(peak.input, peak.last + 1);
      if (std::max(before, after) < grow_while * highest) break;
      (before > after ? --peak.first : ++peak.last);
      peak.mass += std::max(before, after);
    }
    for (int64_t unit = peak.first; unit <= peak.last && highest > 0; ++unit) {
      taken_[peak.input][static_cast<size_t>(unit)] = true;
    }
    return peak;
  }

 private:
  double mass(size_t input, int64_t unit) const {
    return inputs_[input].units[static_cast<size_t>(unit)].mass;
  }
  bool free(size_t input, int64_t unit) const { return !taken_[input][static_cast<size_t>(unit)]; }
  // 0 outside of the input and in spans.
  double part(size_t input, int64_t unit) const {
    const bool inside = unit >= 0 && unit < std::ssize(inputs_[input].units);
    return inside && free(input, unit) ? mass(input, unit) : 0;
  }

  std::span<const InputMass> inputs_;
  std::vector<std::vector<bool>> taken_;
};

}  // namespace

int64_t VisualRows::unit_of(int64_t row, int64_t units) const {
  return std::min(first_unit + row / std::max<int64_t>(1, tokens_per_unit), units - 1);
}

int64_t longest_span(int64_t units, int64_t frames_per_unit) {
  const int64_t two_frames = std::max<int64_t>(1, 2 / std::max<int64_t>(1, frames_per_unit));
  return std::max(two_frames, static_cast<int64_t>(longest_share * static_cast<double>(units)));
}

std::vector<EvidenceSpan> find_evidence(std::span<const InputMass> inputs, size_t most) {
  double total = 0;
  for (const InputMass& input : inputs) {
    for (const UnitMass& unit : input.units) total += unit.mass;
  }
  std::vector<EvidenceSpan> spans;
  if (!(total > 0)) return spans;
  Peaks peaks(inputs);
  double first = 0;
  while (spans.size() < most) {
    const Found found = peaks.next();
    if (found.mass == 0 || found.mass < further_share * first) break;
    first = std::max(first, found.mass);
    const std::vector<UnitMass>& units = inputs[found.input].units;
    spans.push_back({found.input, units[static_cast<size_t>(found.first)].start,
                     units[static_cast<size_t>(found.last)].end, found.mass / total});
  }
  std::stable_sort(spans.begin(), spans.end(),
                   [](const EvidenceSpan& a, const EvidenceSpan& b) { return a.share > b.share; });
  return spans;
}

}  // namespace kinora
