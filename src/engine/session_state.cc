#include "engine/session_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "attention/report.h"
#include "base/error.h"
#include "engine/attention_choice.h"
#include "engine/draft_choice.h"
#include "engine/evidence/evidence_heads.h"
#include "engine/row_type.h"
#include "engine/scheduler/scheduler.h"
#include "engine/session_stream.h"
#include "engine/stopwatch.h"
#include "memory/policies.h"

namespace kinora {
namespace {

void check_share(const char* name, double share) {
  if (share > 0 && share <= 1) return;
  throw Error(ErrorKind::usage,
              fmt::format("{} is {}, but must be above 0 and at most 1", name, share));
}

AttentionSummary summary_of(const AttentionReport& report) {
  AttentionSummary summary;
  summary.calls = report.calls;
  summary.dense_calls = report.dense_calls;
  summary.computed_share = report.share();
  summary.index_seconds = report.index_seconds;
  summary.run_seconds = report.run_seconds;
  if (report.dtype == AttentionDtype::fp8) {
    summary.dtype = "fp8";
    summary.fp8_launches = report.launches.fp8;
    summary.bf16_launches = report.launches.bf16;
  }
  for (const auto& [name, part] : report.parts) {
    const double share = report.pairs > 0
                             ? static_cast<double>(part.pairs) / static_cast<double>(report.pairs)
                             : 0.0;
    summary.parts.push_back({name, part.heads, share, part.seconds});
  }
  return summary;
}

// Passes progress on to the caller's function, if there is one.
class CallbackProgress final : public Progress {
 public:
  explicit CallbackProgress(decltype(SessionOptions::progress) callback)
      : callback_(std::move(callback)) {}
  void update(std::string_view stage, int64_t done, int64_t total) override {
    if (callback_) callback_(stage, done, total);
  }

 private:
  decltype(SessionOptions::progress) callback_;
};

}  // namespace

SessionState::SessionState(std::shared_ptr<const EngineState> engine, const SessionOptions& options)
    : engine_(std::move(engine)),
      options_(options),
      retention_(parse_retention(options.retain)),
      tokens_(parse_tokens(options.tokens)),
      evidence_heads_(find_evidence_heads(real_files(), engine_->directory, model().info())),
      progress_(std::make_unique<CallbackProgress>(options.progress)),
      share_(engine_->rows) {
  check_share("frame_share", options.frame_share);
  check_share("pixel_share", options.pixel_share);
  if (options.snap_share != 0) check_share("snap_share", options.snap_share);
  RowLayout layout = model().info().rows;
  layout.dtype = row_type_of(*engine_, options.row_type);
  memory_ = make_memory(options.memory, {layout, engine_->context.device, retention_});
  drafter_ = choose_drafter(*engine_, options.draft);    // refuses a wrong name at once
  attention_ = choose_attention(*engine_, options_, 0);  // refuses a wrong name at once
  positions_ = model().positions();
  places_.push_back(here());
  clear();
}

SessionState::~SessionState() = default;

const VisualInput& SessionState::add(const VisualRequest& request, const CancelToken& cancel) {
  OpenOptions open;
  open.cancel = cancel;
  open.progress = progress_.get();
  if (request.keep_index) open.index_cache = default_index_cache();
  VisualInput fresh = open_visual(model(), request, open);
  fresh.look_at_less(model(), options_.frame_share, options_.pixel_share);
  if (options_.snap_share > 0 && request.frames.snap == 0) {
    fresh.snap(options_.snap_share, request.frames);
  }
  plan_pictures(fresh);
  inputs_.push_back(std::move(fresh));
  if (inputs_.size() == 1) {  // patterns that follow frames follow those of the first input
    attention_ = choose_attention(*engine_, options_,
                                  tokens_.prunes() ? 0 : inputs_[0].plan.tokens_per_unit);
  }
  return inputs_.back();
}

void SessionState::plan_pictures(VisualInput& fresh) {
  const auto is_picture = [](const VisualInput& input) {
    return input.plan.source.modality == Modality::image;
  };
  const int64_t images =
      std::count_if(inputs_.begin(), inputs_.end(), is_picture) + (is_picture(fresh) ? 1 : 0);
  fresh.plan_among(model(), images);
  std::vector<VisualPlan> plans;
  std::optional<size_t> first_changed;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const VisualPlan& before = inputs_[i].plan;
    plans.push_back(before);
    if (inputs_[i].read && !is_picture(inputs_[i])) continue;
    VisualInput among = inputs_[i];
    among.plan_among(model(), images);
    const bool changed = among.plan.tokens() != before.tokens() || among.plan.grid != before.grid ||
                         among.plan.frame_size != before.frame_size;
    plans.back() = among.plan;
    if (!inputs_[i].read || !changed) continue;
    if (inputs_[i].video == nullptr) {
      throw Error(ErrorKind::unsupported,
                  inputs_[i].source + " was read as the only picture, and " + model().info().name +
                      " sees it otherwise beside another one: index both together");
    }
    if (!first_changed) first_changed = i;
  }
  if (first_changed) {
    // What stands in memory from there on was read beside the picture as it was.
    std::vector<VisualSegment> earlier;
    for (size_t i = 0; i < *first_changed; ++i) {
      lay_out(inputs_[i], inputs_[i].subtitles, i, earlier);
    }
    size_t place = places_.size() - 1;
    while (places_[place].said.visuals > earlier.size()) --place;  // the first place is empty
    go_back_to(place);
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    inputs_[i].plan = plans[i];
    if (first_changed && i >= *first_changed) inputs_[i].read = false;
  }
}

int64_t SessionState::visual_tokens(const VisualLook& look) const {
  return kept_of_input(tokens_, look.plan, options_.frames_per_group);
}

int64_t SessionState::frame_tokens() const {
  if (tokens_.prunes()) return 0;
  for (const VisualInput& input : inputs_) {
    if (input.plan.source.modality == Modality::video && input.plan.tokens_per_unit > 0) {
      return input.plan.tokens_per_unit;
    }
  }
  return 0;
}

SessionState::Place SessionState::here() const {
  return {memory_->mark(), positions_->clone(), transcript_.here()};
}

void SessionState::go_back_to(size_t place) {
  places_.resize(place + 1);
  go_back(places_.back());
}

void SessionState::clear() {
  asked_ = {};
  if (!options_.system.empty()) {
    asked_.conversation.turns.push_back({"system", {{Modality::text, options_.system}}});
  }
}

void SessionState::go_back(const Place& place) {
  memory_->rewind(place.mark);
  share_.resize(memory_->bytes().held());
  positions_ = place.positions->clone();
  transcript_.go_back(place.said);
  while (!visual_rows_.empty() &&
         visual_rows_.back().first + visual_rows_.back().count > memory_->token_count()) {
    visual_rows_.pop_back();
  }
}

template <typename Work>
void SessionState::carry_out(QuestionPlan& plan, const Work& work) {
  // Rows given up here cannot come back after a failure; the next question adds them again.
  if (plan.prompt.from_place) go_back_to(*plan.prompt.from_place);
  const Place before = here();
  const size_t places = places_.size();
  const size_t changes = changes_.size();
  std::vector<bool> read;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    read.push_back(inputs_[i].read);
    if (plan.fewer[i]) std::swap<VisualLook>(inputs_[i], *plan.fewer[i]);
  }
  changes_.insert(changes_.end(), plan.changes.begin(), plan.changes.end());
  memory_->set_kept_share(plan.budget.share);
  try {
    work();
  } catch (...) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      inputs_[i].read = read[i];
      if (plan.fewer[i]) std::swap<VisualLook>(inputs_[i], *plan.fewer[i]);
    }
    changes_.resize(changes);
    places_.resize(places);
    go_back(before);
    throw;
  }
}

Answer SessionState::prepare(const CancelToken& cancel) {
  return prepare(std::vector<ContentPart>(new_inputs(), {Modality::video, ""}), cancel);
}

Answer SessionState::prepare(const std::vector<ContentPart>& parts, const CancelToken& cancel) {
  if (retention_.needs_question()) {
    throw Error(ErrorKind::unsupported,
                std::string(retention_.rule->name()) +
                    " chooses rows by the question, which is not known yet; ask at "
                    "once, or keep rows by key-norm");
  }
  Answer answer;
  if (new_inputs() == 0) return answer;
  const Stopwatch total;
  SpanRecorder spans;
  // Any text will do at the end: what stands before the last input does not depend on it.
  std::vector<ContentPart> question = parts;
  question.push_back({Modality::text, "?"});
  QuestionPlan plan = this->plan(question);
  const Prompt& prompt = plan.prompt;
  size_t end = prompt.runs.size();
  while (end > 0 && prompt.runs[end - 1].visual < 0) --end;
  if (end > prompt.kept_runs) {
    carry_out(plan, [&] { prefill(plan, end, cancel, spans, answer); });
    answer.warnings.insert(answer.warnings.begin(), plan.warnings.begin(), plan.warnings.end());
  }
  answer.row_bytes = memory_->bytes().total();
  answer.spans = spans.take();
  answer.timings.total = total.seconds();
  return answer;
}

Answer SessionState::ask(const std::vector<ContentPart>& parts, const GenerateOptions& options,
                         const std::function<void(std::string_view)>& on_piece,
                         const Looking& looking) {
  check_sampling(options.sampling);
  const Stopwatch total;
  SpanRecorder spans;
  Answer answer;
  QuestionPlan plan = this->plan(parts);
  Prompt& prompt = plan.prompt;
  carry_out(plan, [&] {
    std::optional<RowMass> mass = watch(looking);
    RowMass* const watching = mass ? &*mass : nullptr;
    const Tensor hidden =
        prefill(plan, prompt.runs.size(), options.cancel, spans, answer, watching);
    places_.push_back(here());
    const Stopwatch generating;
    const auto generation_begin = SpanRecorder::Clock::now();
    const double prefilled = total.seconds();
    GenerateOptions limited = options;
    limited.max_tokens = answer_room(options.max_tokens, plan.budget.row_room);
    Generation generation(
        {model(), *memory_, *attention_, *positions_, transcript_.text(), watching}, limited,
        drafter_);
    engine_->scheduler->run(generation, hidden, options.cancel, on_piece,
                            [&] { answer.timings.first_token = total.seconds(); });
    answer.prompt_ids = ids_of(prompt);  // of an hour these are many; the first token goes first
    Generated generated = generation.result();
    if (generated.ids.empty()) answer.timings.first_token = prefilled;
    share_.resize(memory_->bytes().held());
    answer.timings.generate = generating.seconds();
    spans.add("generate", fmt::format("generate {} tokens", generated.ids.size()),
              generation_begin);
    answer.text = std::move(generated.text);
    answer.ids = std::move(generated.ids);
    answer.stop = stop_reason_name(generated.reason);
    if (generated.reason == StopReason::max_tokens && limited.max_tokens < options.max_tokens) {
      answer.stop = "budget-full";
    }
    if (generated.draft.drafted > 0 || !generated.draft.kind.empty()) {
      answer.draft = {generated.draft.passes, generated.draft.drafted, generated.draft.right,
                      generated.draft.plain_seconds, generated.draft.kind};
    }
    transcript_.end_answer();
    if (mass) look(looking, *mass, answer);
  });
  prompt.conversation.turns.push_back({"assistant", {{Modality::text, answer.text}}});
  asked_ = {std::move(prompt.conversation), std::move(prompt.segments), inputs_.size()};
  std::vector<std::string> warnings = std::exchange(changes_, {});
  warnings.insert(warnings.end(), plan.warnings.begin(), plan.warnings.end());
  warnings.insert(warnings.end(), answer.warnings.begin(), answer.warnings.end());
  answer.warnings = std::move(warnings);
  if (const AttentionReport* report = attention_->report()) {
    answer.attention_report = summary_of(*report);
    attention_->clear_report();
  }
  answer.row_bytes = memory_->bytes().total();
  answer.spans = spans.take();
  answer.timings.total = total.seconds();
  return answer;
}

}  // namespace kinora
