// A question planned before anything is done for it: its prompt, what of it is in memory, what it
// will cost, and what to give up where that is more than the session may use. Here a session
// becomes values for prompt.h and budget_planner.h.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "engine/budget/budget_text.h"
#include "engine/session_state.h"
#include "engine/session_stream.h"

namespace kinora {
namespace {

InputShape shape_of(const VisualInput& input) {
  const VisualPlan& plan = input.plan;
  InputShape shape;
  shape.moves = plan.source.modality == Modality::video;
  shape.may_shrink = !input.read && shape.moves;
  shape.to_read = false;
  shape.frames = static_cast<int64_t>(input.samples.size());
  shape.frames_per_unit = plan.frames_per_unit;
  shape.tokens_per_unit = plan.tokens_per_unit;
  shape.trailing_tokens = plan.trailing_tokens;
  shape.frame_pixels = plan.frame_size.width * plan.frame_size.height;
  if (input.video == nullptr) return shape;  // of a saved memory
  const VideoInfo& info = input.video->info();
  shape.coded_pixels = info.coded_size.width * info.coded_size.height;
  if (!info.still && !input.samples.empty()) {
    shape.decoded_pictures = input.samples.back().index - input.samples.front().index + 1;
  }
  shape.indexed_pictures = info.frames;
  return shape;
}

}  // namespace

Prompt SessionState::plan_prompt(const std::vector<ContentPart>& parts, const Looks& looks) const {
  if (source_ && inputs_[0].plan.units == 0) {
    throw Error(ErrorKind::usage,
                inputs_[0].source + " has not given a frame yet: take some of it in first");
  }
  // Rows that were chosen for another question do not serve this one.
  const bool stale = retention_.needs_question() && transcript_.has_seen();
  if (stale && asked_.inputs > 0) {
    throw Error(ErrorKind::unsupported,
                std::string(retention_.rule->name()) +
                    " kept only what the first question needed; ask again from the start "
                    "or keep rows by key-norm");
  }
  Prompt prompt = lay_out_question(asked_, parts, inputs_, looks);
  prompt.runs = model().render(prompt.conversation);
  std::vector<size_t> places;
  for (const Place& place : places_) places.push_back(place.said.items);
  const KeptItems kept = find_kept(flatten(prompt.runs), transcript_, places, stale);
  prompt.from_place = kept.place;
  keep_items(prompt, kept.items);
  if (source_) {
    prompt.closes_video = !source_->closed && kept.items == places[source_->place];
    if (kept.items < places[source_->place]) {
      throw Error(ErrorKind::usage,
                  inputs_[0].source + " cannot be read again: text must come after it");
    }
  }
  std::vector<int64_t> left_out;
  for (const VisualLook* look : looks) {
    left_out.push_back(look->plan.tokens() - visual_tokens(*look));
  }
  count_tokens(prompt, prompt.from_place ? *places_[*prompt.from_place].positions : *positions_,
               looks, left_out);
  return prompt;
}

std::vector<int32_t> SessionState::ids_of(const Prompt& prompt) const {
  const ModelInfo& info = model().info();
  std::vector<int32_t> ids;
  for (const PromptRun& run : prompt.runs) {
    ids.insert(ids.end(), run.ids.begin(), run.ids.end());
    if (run.visual < 0) continue;
    const VisualSegment& segment = prompt.segments[static_cast<size_t>(run.visual)];
    const VisualPlan& plan = inputs_[segment.input].plan;
    const auto units =
        std::span(inputs_[segment.input].unit_tokens)
            .subspan(static_cast<size_t>(segment.first), static_cast<size_t>(segment.count));
    const bool last = segment.first + segment.count == plan.units;
    const int64_t count =
        std::reduce(units.begin(), units.end()) + (last ? plan.trailing_tokens : 0);
    const bool video = plan.source.modality == Modality::video;
    ids.insert(ids.end(), static_cast<size_t>(count), video ? info.video_token : info.image_token);
  }
  return ids;
}

void SessionState::check_positions(QuestionPlan& plan) const {
  const ModelInfo& info = model().info();
  const Prompt& prompt = plan.prompt;
  if (memory_->reads_near()) return;
  if (prompt.end > info.max_position) {
    throw Error(ErrorKind::resource,
                fmt::format("this question reaches position {} but {} was made for positions below "
                            "{}; use fewer frames, a shorter part or smaller frames",
                            prompt.end, info.name, info.max_position),
                ErrorHint::fewer_frames);
  }
  if (prompt.tokens > info.max_position) {
    // Without the number of tokens, which differs from question to question: said once is enough.
    plan.warnings.push_back(
        fmt::format("the prompt has more than the {} tokens that {} was trained for; their "
                    "positions are allowed, but quality may suffer",
                    info.max_position, info.name));
  }
}

int64_t SessionState::row_bytes_before(const Prompt& prompt) const {
  if (!prompt.from_place) return memory_->bytes().held();
  const RowLayout& layout = memory_->layout();
  int64_t rows = 0;
  for (const int64_t count : places_[*prompt.from_place].mark.rows) rows += count;
  return rows * layout.bytes_per_token() / layout.layers;
}

BudgetRequest SessionState::budget_request(const Prompt& prompt) const {
  BudgetRequest request;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    request.inputs.push_back(shape_of(inputs_[i]));
    // What was said so far speaks of these frames.
    if (i < asked_.inputs) request.inputs.back().may_shrink = false;
  }
  for (size_t i = prompt.kept_runs; i < prompt.runs.size(); ++i) {
    const int visual = prompt.runs[i].visual;
    if (visual < 0) continue;
    const VisualSegment& segment = prompt.segments[static_cast<size_t>(visual)];
    if (segment.first == 0) request.inputs[segment.input].to_read = true;
  }
  request.retention = retention_;
  request.tokens = tokens_;
  request.tokens_before =
      prompt.from_place ? places_[*prompt.from_place].mark.tokens : memory_->token_count();
  request.row_bytes_before = row_bytes_before(prompt);
  request.token_bytes = memory_->layout().bytes_per_token();
  if (const RowLayout& layout = memory_->layout();
      rows_are_packed(layout.dtype) && !memory_->device().is_cpu()) {
    request.widened_bytes =
        2 * int64_t{layout.kv_heads} * layout.head_size * static_cast<int64_t>(sizeof(bf16));
  }
  request.weight_bytes = model().info().weight_bytes;
  request.hidden_size = model().decoder().hidden_size();
  request.deep_levels = model().info().deep_levels;
  request.frames_per_group = options_.frames_per_group;
  request.max_group_tokens = group_tokens();
  request.decode_threads =
      options_.decode_threads > 0 ? options_.decode_threads : engine_->threads.threads();
  request.speed = engine_->speed();
  if (options_.memory_budget > 0) request.max_bytes = options_.memory_budget;
  if (options_.max_context > 0) request.max_tokens = options_.max_context;
  request.max_row_bytes = share_.most();
  request.strict = options_.strict;
  return request;
}

QuestionPlan SessionState::plan(const std::vector<ContentPart>& parts) const {
  Looks looks;
  for (const VisualInput& input : inputs_) looks.push_back(&input);
  const Looks wanted = looks;
  QuestionPlan plan;
  plan.prompt = plan_prompt(parts, looks);
  plan.fewer.resize(inputs_.size());
  BudgetRequest request = budget_request(plan.prompt);

  // The prompt with this many frames of each input; what it was before is still there if they are
  // the same.
  std::vector<int64_t> planned;
  for (const InputShape& input : request.inputs) planned.push_back(input.frames);
  const auto plan_for = [&](std::span<const int64_t> frames) {
    if (std::equal(frames.begin(), frames.end(), planned.begin())) return;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (frames[i] == planned[i]) continue;
      const bool all = frames[i] == request.inputs[i].frames;
      plan.fewer[i] = all ? std::nullopt : std::optional(inputs_[i].fewer(frames[i]));
      looks[i] = all ? wanted[i] : &*plan.fewer[i];
      planned[i] = frames[i];
    }
    plan.prompt = plan_prompt(parts, looks);
  };
  request.text_tokens = [&](std::span<const int64_t> frames) {
    plan_for(frames);
    return plan.prompt.text_tokens;
  };
  plan.budget = plan_budget(request);
  if (!plan.budget.fits) throw refusal(request, plan.budget);
  plan_for(plan.budget.frames);
  if (plan.budget.share_limit != Limit::none) {
    plan.changes.push_back(share_change(request, plan.budget));
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!plan.fewer[i]) continue;
    plan.changes.push_back(frames_change(request, plan.budget, inputs_[i].source,
                                         plan.fewer[i]->samples, inputs_[i].samples.size()));
  }
  check_positions(plan);
  return plan;
}

Forecast SessionState::forecast(const std::vector<ContentPart>& parts) const {
  const QuestionPlan plan = this->plan(parts);
  const Cost& cost = plan.budget.cost;
  Forecast forecast;
  forecast.frames = cost.frames;
  forecast.tokens = cost.tokens;
  forecast.visual_tokens = cost.visual_tokens;
  forecast.row_bytes = cost.row_bytes;
  forecast.memory_bytes = cost.bytes();
  forecast.seconds = cost.seconds;
  forecast.decode_seconds = cost.stages.decode;
  forecast.vision_seconds = cost.stages.vision;
  forecast.prefill_seconds = cost.stages.prefill;
  forecast.token_seconds = engine_->speed().step_seconds;
  forecast.changes = changes_;
  forecast.changes.insert(forecast.changes.end(), plan.changes.begin(), plan.changes.end());
  forecast.warnings = plan.warnings;
  return forecast;
}

int64_t SessionState::answer_room(int64_t wanted, int64_t row_room) {
  int64_t room = wanted;
  if (options_.max_context > 0) {
    room = std::min(room, options_.max_context - memory_->token_count());
  }
  const int64_t allowed = std::min(row_room, share_.most());
  if (allowed != BudgetRequest::unlimited) {
    const int64_t token_bytes = memory_->layout().bytes_per_token();
    const int64_t held = memory_->bytes().held();
    room = std::min(room, (allowed - held) / token_bytes);
    // Taken now, so that no other session takes it while the answer is made.
    if (room > 0 && !share_.resize(held + room * token_bytes)) room = 0;
  }
  if (room < 1 && wanted > 0) {
    throw Error(ErrorKind::resource,
                "the budget is used up before the answer begins; raise it, or clear the "
                "conversation");
  }
  return room;
}

}  // namespace kinora
