#include "engine/session_prompt.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "engine/session_state.h"

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

}  // namespace

std::vector<ContentPart> lay_out(const VisualInput& input, size_t number,
                                 std::vector<VisualSegment>& segments) {
  const VisualPlan& plan = input.plan;
  std::vector<ContentPart> parts;
  int64_t begun = 0;  // units laid out so far
  const auto frames_until = [&](int64_t unit) {
    if (unit == begun) return;
    segments.push_back({number, begun, unit - begun});
    parts.push_back({plan.source.modality, ""});
    begun = unit;
  };
  for (const Subtitle& subtitle : input.subtitles) {
    // It stands before the first unit that begins when it is already on screen.
    int64_t unit = begun;
    while (unit < plan.units &&
           input.samples[static_cast<size_t>(unit * plan.frames_per_unit)].time < subtitle.begin) {
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

Prompt SessionState::plan_prompt(const std::vector<ContentPart>& parts) const {
  Prompt prompt;
  prompt.conversation = conversation_;
  prompt.segments = segments_;
  prompt.conversation.turns.push_back({"user", {}});
  std::vector<ContentPart>& content = prompt.conversation.turns.back().parts;
  size_t next_input = inputs_asked_;
  bool blank = true;
  for (const ContentPart& part : parts) {
    if (part.modality == Modality::text) {
      blank = blank && is_blank(part.text);
      content.push_back(part);
      continue;
    }
    if (next_input >= inputs_.size()) {
      throw Error(ErrorKind::usage, "the question speaks of more inputs than were given");
    }
    const auto laid_out = lay_out(inputs_[next_input], next_input, prompt.segments);
    content.insert(content.end(), laid_out.begin(), laid_out.end());
    ++next_input;
  }
  if (blank) throw Error(ErrorKind::usage, "the question is empty");
  if (next_input != inputs_.size()) {
    throw Error(ErrorKind::usage, "the question leaves out inputs that were given");
  }
  prompt.runs = model().render(prompt.conversation);
  find_kept(prompt);
  count_tokens(prompt);
  return prompt;
}

// The store serves as it is when the prompt continues it; else as it was at the latest place that
// the prompt continues (an answer may read differently when it is tokenized as text).
void SessionState::find_kept(Prompt& prompt) const {
  const std::vector<int64_t> wanted = flatten(prompt.runs);
  const size_t common = transcript_.common(wanted);
  const auto continues = [&](size_t items) { return items <= common && items < wanted.size(); };
  // Rows that were chosen for another question do not serve this one.
  const bool stale = retention_.needs_question() && transcript_.has_seen();
  if (stale && inputs_asked_ > 0) {
    throw Error(
        ErrorKind::unsupported,
        "attention-score kept only what the first question needed; ask again from the start "
        "or keep rows by key-norm");
  }
  size_t skip = transcript_.here().items;
  if (stale || !continues(skip)) {
    size_t place = stale ? 0 : places_.size() - 1;
    while (!continues(places_[place].said.items)) --place;  // the first place is empty
    prompt.from_place = place;
    skip = places_[place].said.items;
  }
  for (const PromptRun& run : prompt.runs) {
    const size_t length = run.visual >= 0 ? 1 : run.ids.size();
    if (skip < length) break;
    skip -= length;
    ++prompt.kept_runs;
  }
  prompt.kept_ids = skip;
}

// Walks the positions without doing any work, to know first where the prompt ends.
void SessionState::count_tokens(Prompt& prompt) const {
  const PositionCounter& from =
      prompt.from_place ? *places_[*prompt.from_place].positions : *positions_;
  const std::unique_ptr<PositionCounter> counter = from.clone();
  std::vector<TokenInfo> tokens;
  for (size_t i = prompt.kept_runs; i < prompt.runs.size(); ++i) {
    const PromptRun& run = prompt.runs[i];
    tokens.clear();
    if (run.visual >= 0) {
      const VisualSegment& segment = prompt.segments[static_cast<size_t>(run.visual)];
      const VisualPlan& plan = inputs_[segment.input].plan;
      const std::vector<double> times(static_cast<size_t>(segment.count), 0.0);
      counter->visual(plan, segment.first, segment.count, times,
                      segment.first + segment.count == plan.units, tokens);
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

std::vector<int32_t> SessionState::ids_of(const Prompt& prompt) const {
  const ModelInfo& info = model().info();
  std::vector<int32_t> ids;
  for (const PromptRun& run : prompt.runs) {
    ids.insert(ids.end(), run.ids.begin(), run.ids.end());
    if (run.visual < 0) continue;
    const VisualSegment& segment = prompt.segments[static_cast<size_t>(run.visual)];
    const VisualPlan& plan = inputs_[segment.input].plan;
    const bool last = segment.first + segment.count == plan.units;
    const int64_t count = segment.count * plan.tokens_per_unit + (last ? plan.trailing_tokens : 0);
    const bool video = plan.source.modality == Modality::video;
    ids.insert(ids.end(), static_cast<size_t>(count), video ? info.video_token : info.image_token);
  }
  return ids;
}

void SessionState::check_positions(const Prompt& prompt) {
  const ModelInfo& info = model().info();
  if (prompt.end > info.max_position) {
    throw Error(ErrorKind::resource,
                fmt::format("this question reaches position {} but {} was made for positions below "
                            "{}; use fewer frames, a shorter part or smaller frames",
                            prompt.end, info.name, info.max_position),
                ErrorHint::fewer_frames);
  }
  // Once for a forecast and the answer after it.
  if (prompt.tokens > info.max_position && prompt.tokens != warned_tokens_) {
    warned_tokens_ = prompt.tokens;
    log_warning(
        fmt::format("the prompt has {} tokens, more than the {} that {} was trained for; "
                    "their positions are allowed, but quality may suffer",
                    prompt.tokens, info.max_position, info.name));
  }
}

}  // namespace kinora
