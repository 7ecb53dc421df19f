#include "eval/calibrate.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "engine/session_state.h"
#include "eval/evidence_score.h"
#include "eval/score.h"

namespace kinora {
namespace {

bool usable(const EvalItem& item) {
  return item.parts.size() == 1 && !item.parts[0].source.empty() && !item.times.empty() &&
         !item.all_times;
}

// The share of a unit's time that lies in some stretch.
double covered(const UnitMass& unit, const std::vector<TimeStretch>& times) {
  double inside = 0;
  for (const TimeStretch& time : times) {
    inside += std::max(0.0, std::min(unit.end, time.end) - std::max(unit.start, time.start));
  }
  const double length = unit.end - unit.start;
  return length > 0 ? std::min(1.0, inside / length) : 0;
}

}  // namespace

std::vector<LookedAt> look_with_all_heads(const std::shared_ptr<const EngineState>& engine,
                                          const EvalData& data, const CalibrateOptions& options) {
  std::map<std::string, std::vector<const EvalItem*>> videos;  // questions that share a prefill
  int64_t total = 0;
  for (const EvalItem& item : data.items) {
    if (!usable(item)) continue;
    videos[item.prefix_key()].push_back(&item);
    ++total;
  }
  if (total == 0) {
    throw Error(ErrorKind::bad_input,
                "no question of the set is about one video with a known time ('times')");
  }
  GenerateOptions generate;
  generate.sampling.temperature = 0;
  generate.max_tokens = options.max_tokens;
  generate.cancel = options.cancel;
  std::vector<LookedAt> looked;
  for (const auto& [key, items] : videos) {
    SessionState session(engine, {});
    VisualRequest request;
    request.source = items[0]->parts[0].source;
    request.frames = items[0]->frames;
    session.add(request, options.cancel);
    for (const EvalItem* item : items) {
      session.clear();
      LookedAt one;
      session.ask({{Modality::video, ""}, {Modality::text, eval_prompt(*item)}}, generate,
                  [](std::string_view) {}, {false, &one.heads});
      one.times = item->times;
      if (one.heads.units.size() < 2) continue;  // a picture
      looked.push_back(std::move(one));
      if (options.progress) options.progress(std::ssize(looked), total);
    }
  }
  return looked;
}

Pointing pointing_of(const std::vector<LookedAt>& looked, const std::vector<size_t>& heads) {
  Pointing all;
  for (const LookedAt& one : looked) {
    std::vector<InputMass> input(1);
    input[0].units = one.heads.units;
    input[0].longest = one.heads.longest;
    double inside = 0, total = 0;
    for (size_t unit = 0; unit < one.heads.units.size(); ++unit) {
      double& mass = input[0].units[unit].mass;
      for (const size_t head : heads) {
        mass += double{one.heads.mass[head * one.heads.units.size() + unit]};
      }
      total += mass;
      inside += mass * covered(input[0].units[unit], one.times);
    }
    const std::vector<EvidenceSpan> spans = find_evidence(input, 1);
    all.named += !spans.empty() &&
                 std::any_of(one.times.begin(), one.times.end(),
                             [&](const TimeStretch& time) { return names(spans[0], time); });
    all.inside += total > 0 ? inside / total : 0;
  }
  const auto count = static_cast<double>(std::max<size_t>(1, looked.size()));
  return {all.named / count, all.inside / count};
}

std::vector<size_t> choose_heads(const std::vector<LookedAt>& looked, size_t most) {
  const size_t heads =
      looked.empty() ? 0 : looked[0].heads.mass.size() / looked[0].heads.units.size();
  std::vector<size_t> chosen;
  double best = 0;
  while (chosen.size() < most) {
    size_t found = heads;
    for (size_t head = 0; head < heads; ++head) {
      if (std::find(chosen.begin(), chosen.end(), head) != chosen.end()) continue;
      std::vector<size_t> with = chosen;
      with.push_back(head);
      const double value = pointing_of(looked, with).value();
      if (value <= best) continue;
      best = value;
      found = head;
    }
    if (found == heads) break;
    chosen.push_back(found);
  }
  return chosen;
}

}  // namespace kinora
