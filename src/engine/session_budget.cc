// Budgets known first: what a question will cost is worked out from metadata, and where that is
// more than the session may use, frames are looked at less often or rows are pruned harder, and
// said so.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "engine/session_state.h"
#include "engine/unit_stream.h"

namespace kinora {
namespace {

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

// Room that is left for the answer when frames are given up: a short one.
constexpr int64_t answer_tokens = 64;

// Of a picture in the index of its file and in FFmpeg's tables.
constexpr int64_t picture_bytes = 128;

// The program itself, its libraries and what they set up.
constexpr int64_t program_bytes = int64_t{31} << 20;

// A pruner that the person chose may be made this much stricter before frames are given up.
constexpr double ratio_share = 0.5;

std::string size_text(int64_t bytes) {
  if (bytes >= int64_t{1} << 30) {
    return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / double{1 << 30});
  }
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / double{1 << 20});
}

// Decoded pictures, sampled or not.
double decoded_pixels(const VisualInput& input) {
  const VideoInfo& info = input.video->info();
  const double picture =
      static_cast<double>(info.coded_size.width) * static_cast<double>(info.coded_size.height);
  if (info.still || input.samples.size() < 2) return picture;
  const int64_t first = input.samples.front().index, last = input.samples.back().index;
  return picture * static_cast<double>(last - first + 1);
}

}  // namespace

int64_t SessionState::kept_rows(const Prompt& prompt) const {
  int64_t rows = prompt.text_tokens;
  for (size_t i = prompt.kept_runs; i < prompt.runs.size(); ++i) {
    const int visual = prompt.runs[i].visual;
    if (visual < 0) continue;
    const VisualSegment& segment = prompt.segments[static_cast<size_t>(visual)];
    if (segment.first != 0) continue;  // counted with the first segment of its input
    const VisualPlan& plan = inputs_[segment.input].plan;
    const int64_t group = frames_in_group(plan, options_.frames_per_group) / plan.frames_per_unit;
    for (int64_t unit = 0; unit < plan.units; unit += group) {
      const int64_t units = std::min(group, plan.units - unit);
      const int64_t trailing = unit + units == plan.units ? plan.trailing_tokens : 0;
      rows += kept_count(retention_, units * plan.tokens_per_unit + trailing);
    }
  }
  return rows;
}

int64_t SessionState::row_bytes_before(const Prompt& prompt) const {
  if (!prompt.from_place) return memory_->bytes().total();
  const RowLayout& layout = memory_->layout();
  int64_t rows = 0;
  for (const int64_t count : places_[*prompt.from_place].mark.rows) rows += count;
  return rows * layout.bytes_per_token() / layout.layers;
}

// Memory held besides rows and weights: the program, the index, decoders with their reference
// pictures, frames in flight, and the activations of one group.
int64_t SessionState::working_bytes() const {
  const int threads =
      options_.decode_threads > 0 ? options_.decode_threads : engine_->threads.threads();
  int64_t most = 0;
  int64_t indexes = 0;
  for (const VisualInput& input : inputs_) {
    const VisualPlan& plan = input.plan;
    const int64_t group = frames_in_group(plan, options_.frames_per_group);
    const int64_t frames = group * plan.frame_size.width * plan.frame_size.height * 3;
    const FrameSize coded = input.video->info().coded_size;
    const int64_t decoders = threads * 20 * (coded.width * coded.height * 3 / 2);
    int64_t tokens = group * plan.tokens_per_unit;
    if (!retention_.prunes()) {  // then groups of frames are joined
      const int64_t before = std::min(options_.max_group_tokens, plan.tokens());
      tokens = std::max(tokens, before + tokens / plan.frames_per_unit);
    }
    tokens = std::min(tokens, plan.tokens()) + 512;
    // Deep rows are held as they come and, for a moment, joined.
    const int64_t widths = 9 + 2 * model().info().deep_levels;
    const int64_t activations = tokens * widths * model().decoder().hidden_size() * 4;
    most = std::max(most, decoders + 8 * frames + activations);
    indexes += input.video->info().frames * picture_bytes;
  }
  return most + indexes + program_bytes;
}

int64_t SessionState::row_budget() const {
  const int64_t shared = share_.most();
  if (options_.memory_budget == 0) return shared;
  const int64_t own = options_.memory_budget - model().info().weight_bytes - working_bytes();
  return std::clamp<int64_t>(own, 0, shared);
}

bool SessionState::has_row_budget() const {
  return options_.memory_budget > 0 || engine_->rows.limit() != unlimited;
}

std::string SessionState::budget_text() const {
  if (options_.memory_budget > 0) return size_text(options_.memory_budget) + " of memory";
  return size_text(row_budget()) + " of memory for keys and values";
}

Forecast SessionState::cost_of(const Prompt& prompt) const {
  Forecast cost;
  double pixels = 0;
  int64_t visual_tokens = 0;
  for (size_t i = prompt.kept_runs; i < prompt.runs.size(); ++i) {
    const int visual = prompt.runs[i].visual;
    if (visual < 0) continue;
    const VisualSegment& segment = prompt.segments[static_cast<size_t>(visual)];
    if (segment.first != 0) continue;
    const VisualInput& input = inputs_[segment.input];
    cost.frames += static_cast<int64_t>(input.samples.size());
    visual_tokens += input.plan.tokens();
    pixels += decoded_pixels(input);
  }
  cost.tokens = prompt.tokens;
  cost.visual_tokens = visual_tokens;
  const int64_t before = row_bytes_before(prompt);
  const int64_t row_bytes = memory_->layout().bytes_per_token();
  const int64_t kept = kept_rows(prompt);
  cost.row_bytes = before + kept * row_bytes;
  cost.memory_bytes = model().info().weight_bytes + cost.row_bytes + working_bytes();
  const double rows =
      static_cast<double>(before / std::max<int64_t>(1, row_bytes)) + static_cast<double>(kept) / 2;
  cost.seconds = engine_->expected_seconds({prompt.tokens, visual_tokens, rows, pixels});
  cost.changes = change_texts();
  return cost;
}

// Visual rows may take what the budget leaves: the ratio that does it, if it is not far away.
bool SessionState::lower_ratio(const Prompt& prompt, const Forecast& cost) {
  const double asked = parse_retention(options_.retain).ratio;
  const int64_t token_bytes = memory_->layout().bytes_per_token();
  const int64_t room = row_budget() - answer_tokens * token_bytes;
  if (!retention_.prunes() || cost.row_bytes <= room) return false;
  const int64_t visual = (kept_rows(prompt) - prompt.text_tokens) * token_bytes;
  const double share = static_cast<double>(room - (cost.row_bytes - visual)) /
                       static_cast<double>(std::max<int64_t>(1, visual));
  // A little less, because every group rounds its own share; three digits are easier to read.
  const double ratio = std::floor(retention_.ratio * share * 990) / 1000;
  if (!(ratio >= asked * ratio_share)) return false;
  retention_.ratio = ratio;
  memory_->set_kept_share(ratio);
  note_change({std::nullopt,
               fmt::format("to keep within {}, {} of every group of frames stays in memory instead "
                           "of {}",
                           budget_text(), to_string(retention_), asked)});
  return true;
}

bool SessionState::look_less_often(const Prompt& prompt, const Forecast& cost) {
  double share = 1;
  std::string limit;
  const int64_t context = memory_->token_count() + prompt.tokens;
  if (options_.max_context > 0) {
    const int64_t room = options_.max_context - std::min(answer_tokens, options_.max_context / 4);
    const int64_t other = context - cost.visual_tokens;
    const double left = static_cast<double>(room - other) /
                        static_cast<double>(std::max<int64_t>(1, cost.visual_tokens));
    if (context > room && left < share) {
      share = left;
      limit = fmt::format("{} tokens of context", options_.max_context);
    }
  }
  const int64_t token_bytes = memory_->layout().bytes_per_token();
  const int64_t row_room = row_budget() - answer_tokens * token_bytes;
  if (has_row_budget() && cost.row_bytes > row_room) {
    const int64_t visual = (kept_rows(prompt) - prompt.text_tokens) * token_bytes;
    const double left = static_cast<double>(row_room - (cost.row_bytes - visual)) /
                        static_cast<double>(std::max<int64_t>(1, visual));
    if (left < share) {
      share = left;
      limit = budget_text();
    }
  }
  if (limit.empty()) return false;
  const std::string needs = fmt::format(
      "this question needs {} frames, {} tokens and {} of memory, more than the budget "
      "of {}",
      cost.frames, context, size_text(cost.memory_bytes), limit);
  if (options_.strict) {
    throw Error(ErrorKind::resource,
                needs + "; a session that is not strict would look at fewer frames",
                ErrorHint::not_strict);
  }
  bool changed = false;
  for (size_t i = inputs_asked_; i < inputs_.size() && share > 0; ++i) {
    VisualInput& input = inputs_[i];
    if (input.read || input.plan.source.modality != Modality::video) continue;
    const auto had = static_cast<int64_t>(input.samples.size());
    const int64_t unit = input.plan.frames_per_unit;
    const auto wanted = static_cast<int64_t>(share * static_cast<double>(had));
    const int64_t frames = std::min(had - unit, wanted / unit * unit);
    if (frames < unit) continue;
    input.look_at(model(), frames);
    changed = true;
    const double length = input.samples.back().time - input.samples.front().time;
    const double rate = length > 0 ? static_cast<double>(frames - 1) / length : 0.0;
    note_change(
        {i, fmt::format("to keep within {}, {} of {} frames of {} are looked at ({:.3g} a second)",
                        limit, frames, input.sampled, input.source, rate)});
  }
  if (!changed) {
    throw Error(
        ErrorKind::resource,
        needs + ", and no fewer frames would do; raise the budget, or ask about a shorter part",
        ErrorHint::shorter_part);
  }
  return true;
}

void SessionState::note_change(Change change) {
  std::erase_if(changes_, [&](const Change& earlier) { return earlier.input == change.input; });
  changes_.push_back(std::move(change));
}

std::vector<std::string> SessionState::change_texts() const {
  std::vector<std::string> texts;
  for (const Change& change : changes_) texts.push_back(change.text);
  return texts;
}

Prompt SessionState::plan_within_budget(const std::vector<ContentPart>& parts) {
  while (true) {
    Prompt prompt = plan_prompt(parts);
    if (options_.max_context > 0 || has_row_budget()) {
      const Forecast cost = cost_of(prompt);
      if (!options_.strict && lower_ratio(prompt, cost)) continue;
      if (look_less_often(prompt, cost)) continue;
    }
    check_positions(prompt);
    return prompt;
  }
}

Forecast SessionState::forecast(const std::vector<ContentPart>& parts) {
  return cost_of(plan_within_budget(parts));
}

int64_t SessionState::answer_room(int64_t wanted) {
  int64_t room = wanted;
  if (options_.max_context > 0) {
    room = std::min(room, options_.max_context - memory_->token_count());
  }
  if (has_row_budget()) {
    const int64_t token_bytes = memory_->layout().bytes_per_token();
    room = std::min(room, (row_budget() - memory_->bytes().total()) / token_bytes);
    // Taken now, so that no other session takes it while the answer is made.
    if (room > 0 && !share_.resize(memory_->bytes().total() + room * token_bytes)) room = 0;
  }
  if (room < 1 && wanted > 0) {
    throw Error(ErrorKind::resource,
                "the budget is used up before the answer begins; raise it, or clear the "
                "conversation");
  }
  return room;
}

}  // namespace kinora
