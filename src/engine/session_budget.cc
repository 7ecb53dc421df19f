// Budgets known first: what a question will cost is worked out from metadata, and where that is
// more than the session may use, the planner says what to give up. Here a session becomes numbers
// for the planner, and the plan becomes words.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "engine/session_state.h"

namespace kinora {
namespace {

constexpr int64_t unlimited = BudgetRequest::unlimited;

struct SizeUnit {
  const char* name;
  int64_t bytes;
  int64_t parts;  // of one, shown
};
constexpr SizeUnit size_units[] = {
    {"GiB", int64_t{1} << 30, 100}, {"MiB", int64_t{1} << 20, 10}, {"KiB", 1 << 10, 10}};

// Rounded up, so that a budget of what is shown is enough.
std::string size_text(int64_t bytes) {
  for (const SizeUnit& unit : size_units) {
    if (bytes < unit.bytes) continue;
    const double parts = std::ceil(static_cast<double>(bytes) / static_cast<double>(unit.bytes) *
                                   static_cast<double>(unit.parts));
    return fmt::format("{:.{}f} {}", parts / static_cast<double>(unit.parts),
                       unit.parts == 100 ? 2 : 1, unit.name);
  }
  return fmt::format("{} bytes", bytes);
}

InputShape shape_of(const VisualInput& input) {
  const VideoInfo& info = input.video->info();
  const VisualPlan& plan = input.plan;
  InputShape shape;
  shape.may_shrink = !input.read && plan.source.modality == Modality::video;
  shape.to_read = false;
  shape.frames = static_cast<int64_t>(input.samples.size());
  shape.frames_per_unit = plan.frames_per_unit;
  shape.tokens_per_unit = plan.tokens_per_unit;
  shape.trailing_tokens = plan.trailing_tokens;
  shape.frame_pixels = plan.frame_size.width * plan.frame_size.height;
  shape.coded_pixels = info.coded_size.width * info.coded_size.height;
  if (!info.still && !input.samples.empty()) {
    shape.decoded_pictures = input.samples.back().index - input.samples.front().index + 1;
  }
  shape.indexed_pictures = info.frames;
  return shape;
}

}  // namespace

int64_t SessionState::row_bytes_before(const Prompt& prompt) const {
  if (!prompt.from_place) return memory_->bytes().total();
  const RowLayout& layout = memory_->layout();
  int64_t rows = 0;
  for (const int64_t count : places_[*prompt.from_place].mark.rows) rows += count;
  return rows * layout.bytes_per_token() / layout.layers;
}

BudgetRequest SessionState::budget_request(const Prompt& prompt) const {
  BudgetRequest request;
  for (const VisualInput& input : inputs_) request.inputs.push_back(shape_of(input));
  for (size_t i = prompt.kept_runs; i < prompt.runs.size(); ++i) {
    const int visual = prompt.runs[i].visual;
    if (visual < 0) continue;
    const VisualSegment& segment = prompt.segments[static_cast<size_t>(visual)];
    if (segment.first == 0) request.inputs[segment.input].to_read = true;
  }
  request.retention = retention_;
  request.tokens_before =
      prompt.from_place ? places_[*prompt.from_place].mark.tokens : memory_->token_count();
  request.row_bytes_before = row_bytes_before(prompt);
  request.token_bytes = memory_->layout().bytes_per_token();
  request.weight_bytes = model().info().weight_bytes;
  request.hidden_size = model().decoder().hidden_size();
  request.frames_per_group = options_.frames_per_group;
  request.max_group_tokens = options_.max_group_tokens;
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

  // The prompt with so many frames of each input; what it was before is still there if they are
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
  if (!plan.budget.fits) refuse(plan.budget);
  plan_for(plan.budget.frames);
  describe_changes(plan);
  check_positions(plan);
  return plan;
}

std::string SessionState::limit_text(Limit limit) const {
  switch (limit) {
    case Limit::bytes:
      return size_text(options_.memory_budget) + " of memory";
    case Limit::row_bytes:
      return size_text(share_.most()) + " of memory for keys and values";
    case Limit::tokens:
      return fmt::format("{} tokens of context", options_.max_context);
    case Limit::none:
      break;
  }
  return "";
}

void SessionState::refuse(const BudgetPlan& budget) const {
  const Cost& wanted = budget.wanted;
  const std::string text = fmt::format(
      "this question needs {} frames, {} tokens and {} of memory, more than the budget of {}",
      wanted.frames, wanted.context, size_text(wanted.bytes()), limit_text(budget.exceeded));
  const std::string smallest = budget.exceeded == Limit::tokens
                                   ? fmt::format("{} tokens", budget.smallest_limit)
                                   : size_text(budget.smallest_limit);
  if (options_.strict) {
    throw Error(ErrorKind::resource,
                fmt::format("{}; a budget of {} would do, and a session that is not strict would "
                            "look at fewer frames",
                            text, smallest),
                ErrorHint::not_strict);
  }
  const std::string how =
      budget.cost.frames < wanted.frames ? fmt::format(", for {} frames", budget.cost.frames) : "";
  throw Error(ErrorKind::resource,
              fmt::format("{}; the smallest that works is {}{}: raise the budget{}", text, smallest,
                          how, memory_->token_count() > 0 ? ", or clear the conversation" : ""));
}

void SessionState::describe_changes(QuestionPlan& plan) const {
  const BudgetPlan& budget = plan.budget;
  if (budget.share_limit != Limit::none) {
    Retention less = retention_;
    less.ratio = budget.share;
    plan.changes.push_back(
        fmt::format("to keep within {}, {} of every group of frames stays in memory instead of {}",
                    limit_text(budget.share_limit), to_string(less), retention_.ratio));
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!plan.fewer[i]) continue;
    const std::vector<SampledFrame>& samples = plan.fewer[i]->samples;
    const double length = samples.back().time - samples.front().time;
    const double rate = length > 0 ? static_cast<double>(samples.size() - 1) / length : 0.0;
    plan.changes.push_back(
        fmt::format("to keep within {}, {} of {} frames of {} are looked at ({:.3g} a second)",
                    limit_text(budget.frames_limit), samples.size(), inputs_[i].samples.size(),
                    inputs_[i].source, rate));
  }
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
  if (allowed != unlimited) {
    const int64_t token_bytes = memory_->layout().bytes_per_token();
    room = std::min(room, (allowed - memory_->bytes().total()) / token_bytes);
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
