#include "engine/prompt.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace kinora {
namespace {

bool is_blank(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c == ' ' || (c >= '\t' && c <= '\r'); });
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  if (whole >= 3600) {
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

// Between the first and the last frame of a unit.
double middle_of(const VisualPlan& plan, const std::vector<SampledFrame>& samples, int64_t unit) {
  const auto first = static_cast<size_t>(unit * plan.frames_per_unit);
  const size_t last =
      std::min(first + static_cast<size_t>(plan.frames_per_unit) - 1, samples.size() - 1);
  return (samples[first].time + samples[last].time) / 2;
}

}  // namespace

std::vector<ContentPart> lay_out(const VisualLook& look, const std::vector<Subtitle>& subtitles,
                                 size_t number, std::vector<VisualSegment>& segments) {
  const VisualPlan& plan = look.plan;
  std::vector<ContentPart> parts;
  int64_t begun = 0;  // units laid out so far
  const auto frames_until = [&](int64_t unit) {
    const int64_t from = begun;
    while (begun < unit) {
      const int64_t count = plan.units_apart ? 1 : unit - begun;
      segments.push_back({number, begun, count});
      parts.push_back({plan.source.modality, ""});
      if (plan.units_apart) {
        parts.back().time = middle_of(plan, look.samples, begun);
        parts.back().continues = begun > from;
      }
      begun += count;
    }
  };
  for (const Subtitle& subtitle : subtitles) {
    // It stands before the first unit that begins when it is already on screen.
    int64_t unit = begun;
    while (unit < plan.units &&
           look.samples[static_cast<size_t>(unit * plan.frames_per_unit)].time < subtitle.begin) {
      ++unit;
    }
    frames_until(unit);
    const std::string line = fmt::format("[{}] {}\n", clock_text(subtitle.begin), subtitle.text);
    if (!parts.empty() && parts.back().modality == Modality::text) {
      parts.back().text += line;
    } else {
      parts.push_back({Modality::text, line});
    }
  }
  frames_until(plan.units);
  return parts;
}

Prompt lay_out_question(const Asked& asked, const std::vector<ContentPart>& parts,
                        std::span<const VisualInput> inputs, const Looks& looks) {
  Prompt prompt;
  prompt.conversation = asked.conversation;
  prompt.segments = asked.segments;
  prompt.conversation.turns.push_back({"user", {}});
  std::vector<ContentPart>& content = prompt.conversation.turns.back().parts;
  size_t next = asked.inputs;
  bool blank = true;
  for (const ContentPart& part : parts) {
    if (part.modality == Modality::text) {
      blank = blank && is_blank(part.text);
      content.push_back(part);
      continue;
    }
    if (next >= inputs.size()) {
      throw Error(ErrorKind::usage, "the question speaks of more inputs than were given");
    }
    const auto laid_out = lay_out(*looks[next], inputs[next].subtitles, next, prompt.segments);
    content.insert(content.end(), laid_out.begin(), laid_out.end());
    ++next;
  }
  if (blank) throw Error(ErrorKind::usage, "the question is empty");
  if (next != inputs.size()) {
    throw Error(ErrorKind::usage, "the question leaves out inputs that were given");
  }
  return prompt;
}

void lay_out_anew(Asked& asked, const VisualLook& first) {
  if (asked.inputs == 0) return;
  const auto its = [](const VisualSegment& segment) { return segment.input == 0; };
  const auto end = std::find_if_not(asked.segments.begin(), asked.segments.end(), its);
  const int64_t before = end - asked.segments.begin();
  std::vector<VisualSegment> segments;
  const std::vector<ContentPart> laid_out = lay_out(first, {}, 0, segments);
  asked.segments.erase(asked.segments.begin(), end);
  asked.segments.insert(asked.segments.begin(), segments.begin(), segments.end());
  for (Turn& turn : asked.conversation.turns) {
    const auto begin =
        std::find_if(turn.parts.begin(), turn.parts.end(),
                     [](const ContentPart& part) { return part.modality != Modality::text; });
    if (begin == turn.parts.end()) continue;
    const auto rest = turn.parts.erase(begin, begin + before);
    turn.parts.insert(rest, laid_out.begin(), laid_out.end());
    return;
  }
}

KeptItems find_kept(std::span<const int64_t> wanted, const Transcript& said,
                    std::span<const size_t> places, bool afresh) {
  if (afresh) return {0, places.front()};
  const size_t common = said.common(wanted);
  const auto continues = [&](size_t items) { return items <= common && items < wanted.size(); };
  if (continues(said.here().items)) return {std::nullopt, said.here().items};
  size_t place = places.size() - 1;
  while (!continues(places[place])) --place;  // the first place is empty
  return {place, places[place]};
}

void keep_items(Prompt& prompt, size_t items) {
  for (const PromptRun& run : prompt.runs) {
    const size_t length = run.visual >= 0 ? 1 : run.ids.size();
    if (items < length) break;
    items -= length;
    ++prompt.kept_runs;
  }
  prompt.kept_ids = items;
}

void place_visual(PositionCounter& counter, const VisualPlan& plan, const VisualSegment& segment,
                  std::span<const double> times, bool last,
                  const std::function<void(std::span<const TokenInfo>)>& take) {
  constexpr int64_t most_tokens = 1 << 16;
  const int64_t most =
      std::max<int64_t>(1, most_tokens / std::max<int64_t>(1, plan.tokens_per_unit));
  std::vector<TokenInfo> some;
  int64_t done = 0;
  do {  // once without units: what trails may come after them
    const int64_t units = std::min(most, segment.count - done);
    some.clear();
    const auto from = std::min(times.size(), static_cast<size_t>(done));
    counter.visual(plan, segment.first + done, units,
                   times.subspan(from, std::min(times.size() - from, static_cast<size_t>(units))),
                   last && done + units == segment.count, some);
    take(some);
    done += units;
  } while (done < segment.count);
}

void count_tokens(Prompt& prompt, const PositionCounter& from, const Looks& looks,
                  std::span<const int64_t> left_out) {
  const std::unique_ptr<PositionCounter> counter = from.clone();
  std::vector<TokenInfo> tokens;
  if (prompt.closes_video) {
    const VisualPlan& open = looks[0]->plan;
    counter->visual(open, open.units, 0, {}, true, tokens);
    prompt.tokens = prompt.text_tokens = static_cast<int64_t>(tokens.size());
  }
  for (size_t i = prompt.kept_runs; i < prompt.runs.size(); ++i) {
    const PromptRun& run = prompt.runs[i];
    tokens.clear();
    if (run.visual >= 0) {
      const VisualSegment& segment = prompt.segments[static_cast<size_t>(run.visual)];
      const VisualPlan& plan = looks[segment.input]->plan;
      const std::vector<double> times(static_cast<size_t>(segment.count), 0.0);
      place_visual(*counter, plan, segment, times, segment.first + segment.count == plan.units,
                   [&](std::span<const TokenInfo> some) { prompt.tokens += std::ssize(some); });
      if (segment.first == 0 && !left_out.empty()) prompt.tokens -= left_out[segment.input];
    } else {
      const size_t known = i == prompt.kept_runs ? prompt.kept_ids : 0;
      const auto count = static_cast<int64_t>(run.ids.size() - known);
      counter->text(count, tokens);
      prompt.text_tokens += count;
    }
    prompt.tokens += static_cast<int64_t>(tokens.size());
  }
  prompt.end = counter->next();
}

}  // namespace kinora
