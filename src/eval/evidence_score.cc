#include "eval/evidence_score.h"

#include <algorithm>

namespace kinora {
namespace {

// The probability that a span of this length anywhere in [begin, end] names the stretch.
double chance(const TimeStretch& stretch, double length, double begin, double end) {
  const double room = end - begin - length;
  if (room <= 0) return names({0, begin, begin + length, 0}, stretch) ? 1 : 0;
  constexpr int places = 2000;
  int right = 0;
  for (int i = 0; i < places; ++i) {
    const double start = begin + room * (i + 0.5) / places;
    right += names({0, start, start + length, 0}, stretch);
  }
  return static_cast<double>(right) / places;
}

// The same for any of the stretches.
double chance_of_any(const std::vector<TimeStretch>& stretches, double length, double begin,
                     double end) {
  const double room = end - begin - length;
  constexpr int places = 2000;
  int right = 0;
  for (int i = 0; i < places; ++i) {
    const double start = begin + std::max(0.0, room) * (i + 0.5) / places;
    right += std::any_of(stretches.begin(), stretches.end(), [&](const TimeStretch& stretch) {
      return names({0, start, start + length, 0}, stretch);
    });
  }
  return static_cast<double>(right) / places;
}

}  // namespace

bool names(const EvidenceSpan& span, const TimeStretch& stretch) {
  const auto inside = [](double time, double start, double end) {
    return time >= start && time <= end;
  };
  return span.end - span.start < stretch.end - stretch.start
             ? inside((span.start + span.end) / 2, stretch.start, stretch.end)
             : inside((stretch.start + stretch.end) / 2, span.start, span.end);
}

EvidenceScore score_evidence(const EvalItem& item, std::span<const EvidenceSpan> spans,
                             double begin, double end) {
  EvidenceScore score;
  const auto visual = std::count_if(item.parts.begin(), item.parts.end(),
                                    [](const EvalPart& part) { return !part.source.empty(); });
  if (item.times.empty() || visual != 1 || !(end > begin)) return score;
  score.judged = true;
  score.several = item.all_times;
  if (spans.empty()) return score;
  const auto length = [](const EvidenceSpan& span) { return span.end - span.start; };
  score.length = length(spans[0]) / (end - begin);
  if (!item.all_times) {
    score.found = std::any_of(item.times.begin(), item.times.end(),
                              [&](const TimeStretch& time) { return names(spans[0], time); });
    score.guessed = chance_of_any(item.times, length(spans[0]), begin, end);
    return score;
  }
  for (const TimeStretch& time : item.times) {
    score.found += std::any_of(spans.begin(), spans.end(),
                               [&](const EvidenceSpan& span) { return names(span, time); });
    double missed = 1;
    for (const EvidenceSpan& span : spans) missed *= 1 - chance(time, length(span), begin, end);
    score.guessed += 1 - missed;
  }
  score.found /= static_cast<double>(item.times.size());
  score.guessed /= static_cast<double>(item.times.size());
  return score;
}

}  // namespace kinora
