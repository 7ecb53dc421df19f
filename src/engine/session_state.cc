#include "engine/session_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "attention/sparse_attention.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/attention_choice.h"
#include "engine/group_prefill.h"
#include "engine/stopwatch.h"
#include "engine/unit_stream.h"

namespace kinora {

// What a question adds to the store, and what of the store it can build on.
struct SessionState::Prompt {
  Conversation conversation;
  std::vector<PromptRun> runs;       // of the whole conversation
  std::optional<size_t> from_place;  // go back to this place first (0 is the empty store)
  size_t kept_runs = 0;              // of `runs`, in the store whole …
  size_t kept_ids = 0;               // … and so many ids of the run after them
  int64_t tokens = 0;                // to prefill
};

struct SessionState::Place {
  RowStore::Mark mark;
  std::unique_ptr<PositionCounter> positions;
  std::vector<PromptRun> done;
  size_t history = 0;
};

namespace {

// A run list as one sequence: ids, and -1 - n for visual item n. `end_of` maps back.
std::vector<int64_t> flatten(const std::vector<PromptRun>& runs) {
  std::vector<int64_t> flat;
  for (const PromptRun& run : runs) {
    if (run.visual >= 0) flat.push_back(-1 - run.visual);
    flat.insert(flat.end(), run.ids.begin(), run.ids.end());
  }
  return flat;
}

DType row_type(const Model& model, const SessionOptions& options) {
  if (options.row_type == "f32") return DType::f32;
  if (options.row_type == "bf16") return DType::bf16;
  if (options.row_type != "auto") {
    throw Error(ErrorKind::usage,
                "unknown row type '" + options.row_type + "': give auto, f32 or bf16");
  }
  return model.info().weight_dtype == DType::f32 ? DType::f32 : DType::bf16;
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

bool is_blank(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c == ' ' || (c >= '\t' && c <= '\r'); });
}

}  // namespace

SessionState::SessionState(std::shared_ptr<const EngineState> engine, const SessionOptions& options)
    : engine_(std::move(engine)),
      options_(options),
      progress_(std::make_unique<CallbackProgress>(options.progress)) {
  RowLayout layout = model().info().rows;
  layout.dtype = row_type(model(), options);
  store_ = std::make_unique<RowStore>(layout);
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
  inputs_.push_back(open_visual(model(), request, open));
  const auto images = std::count_if(inputs_.begin(), inputs_.end(), [](const VisualInput& input) {
    return input.plan.source.modality == Modality::image;
  });
  for (size_t i = inputs_asked_; i < inputs_.size(); ++i) inputs_[i].plan_among(model(), images);
  if (inputs_.size() == 1) {  // patterns that follow frames follow those of the first input
    attention_ = choose_attention(*engine_, options_, inputs_[0].plan.tokens_per_unit);
  }
  return inputs_.back();
}

SessionState::Place SessionState::here() const {
  return {store_->mark(), positions_->clone(), done_, history_.size()};
}

void SessionState::go_back_to(size_t place) {
  places_.resize(place + 1);
  go_back(places_.back());
}

void SessionState::clear() {
  conversation_.turns.clear();
  if (!options_.system.empty()) {
    conversation_.turns.push_back({"system", {{Modality::text, options_.system}}});
  }
  inputs_asked_ = 0;
}

void SessionState::go_back(const Place& place) {
  store_->rewind(place.mark);
  positions_ = place.positions->clone();
  done_ = place.done;
  history_.resize(place.history);
}

SessionState::Prompt SessionState::plan_prompt(std::vector<ContentPart> parts) const {
  size_t next_input = inputs_asked_;
  bool blank = true;
  for (ContentPart& part : parts) {
    if (part.modality == Modality::text) {
      blank = blank && is_blank(part.text);
    } else if (next_input < inputs_.size()) {
      part.modality = inputs_[next_input++].plan.source.modality;
    } else {
      throw Error(ErrorKind::usage, "the question speaks of more inputs than were given");
    }
  }
  if (blank) throw Error(ErrorKind::usage, "the question is empty");
  if (next_input != inputs_.size()) {
    throw Error(ErrorKind::usage, "the question leaves out inputs that were given");
  }
  Prompt prompt;
  prompt.conversation = conversation_;
  prompt.conversation.turns.push_back({"user", std::move(parts)});
  prompt.runs = model().render(prompt.conversation);

  // The store serves as it is when the prompt continues it; else as it was at the latest place that
  // the prompt continues (an answer may read differently when it is tokenized as text).
  const std::vector<int64_t> wanted = flatten(prompt.runs);
  size_t skip = 0;
  const auto continues = [&](const std::vector<PromptRun>& stored) {
    const std::vector<int64_t> have = flatten(stored);
    skip = have.size();
    return have.size() < wanted.size() && std::equal(have.begin(), have.end(), wanted.begin());
  };
  const PositionCounter* from = positions_.get();
  if (!continues(done_)) {
    size_t place = places_.size() - 1;
    while (!continues(places_[place].done)) --place;  // the first place is empty: always continued
    prompt.from_place = place;
    from = places_[place].positions.get();
  }
  for (const PromptRun& run : prompt.runs) {
    const size_t length = run.visual >= 0 ? 1 : run.ids.size();
    if (skip < length) break;
    skip -= length;
    ++prompt.kept_runs;
  }
  prompt.kept_ids = skip;

  // Walk the positions without doing any work, to know first where the prompt ends.
  const std::unique_ptr<PositionCounter> counter = from->clone();
  std::vector<TokenInfo> tokens;
  for (size_t i = prompt.kept_runs; i < prompt.runs.size(); ++i) {
    const PromptRun& run = prompt.runs[i];
    tokens.clear();
    if (run.visual >= 0) {
      const VisualPlan& plan = inputs_[static_cast<size_t>(run.visual)].plan;
      const std::vector<double> times(static_cast<size_t>(plan.units), 0.0);
      counter->visual(plan, 0, plan.units, times, true, tokens);
      prompt.tokens += plan.tokens();
    } else {
      const size_t known = i == prompt.kept_runs ? prompt.kept_ids : 0;
      const auto count = static_cast<int64_t>(run.ids.size() - known);
      counter->text(count, tokens);
      prompt.tokens += count;
    }
  }
  const ModelInfo& info = model().info();
  if (counter->next() > info.max_position) {
    throw Error(ErrorKind::resource,
                fmt::format("this question reaches position {} but {} was made for positions below "
                            "{}; use fewer frames (--fps, --frames), a shorter part (--start, "
                            "--end) or smaller ones (--max-pixels)",
                            counter->next(), info.name, info.max_position));
  }
  if (prompt.tokens > info.max_position) {
    log_warning(
        fmt::format("the prompt has {} tokens, more than the {} that {} was trained for; "
                    "their positions are allowed, but quality may suffer",
                    prompt.tokens, info.max_position, info.name));
  }
  return prompt;
}

void SessionState::encode_visual(VisualInput& input, GroupPrefill& groups,
                                 const CancelToken& cancel, Answer& answer) {
  ReadOptions read;
  read.cancel = cancel;
  read.progress = progress_.get();
  UnitStream stream(input, read, options_.frames_per_group);
  for (;;) {
    const Stopwatch waiting;
    auto units = stream.next();
    answer.timings.decode_wait += waiting.seconds();
    if (!units) break;
    const Stopwatch encoding;
    Tensor visual = model().encode(engine_->context, input.plan, units->frames, units->last);
    answer.timings.vision += encoding.seconds();
    answer.frames += units->frames.frames();
    answer.visual_tokens += visual.size(0);
    std::vector<TokenInfo> tokens;
    positions_->visual(input.plan, units->first, units->count, units->times, units->last, tokens);
    groups.add(std::move(visual), std::move(tokens));
  }
  const ReadReport report = stream.report();
  answer.timings.decode += report.decode_cpu_seconds;
  for (const DamagedSpan& span : report.damaged) {
    answer.warnings.push_back(
        fmt::format("{} is damaged from {:.2f} s to {:.2f} s; {} sampled frame(s) there were lost",
                    input.source, span.from, span.to, span.lost));
  }
}

Tensor SessionState::prefill(const Prompt& prompt, const CancelToken& cancel, Answer& answer) {
  GroupPrefill groups(engine_->context, model(), *store_, *attention_, options_.max_group_tokens,
                      prompt.tokens, *progress_, cancel);
  for (size_t i = prompt.kept_runs; i < prompt.runs.size(); ++i) {
    PromptRun run = prompt.runs[i];
    if (run.visual >= 0) {
      encode_visual(inputs_[static_cast<size_t>(run.visual)], groups, cancel, answer);
    } else {
      if (i == prompt.kept_runs) {
        run.ids.erase(run.ids.begin(), run.ids.begin() + static_cast<int64_t>(prompt.kept_ids));
      }
      if (run.ids.empty()) continue;
      std::vector<TokenInfo> tokens;
      positions_->text(static_cast<int64_t>(run.ids.size()), tokens);
      groups.add(model().decoder().embed(engine_->context, run.ids), std::move(tokens));
      history_.insert(history_.end(), run.ids.begin(), run.ids.end());
    }
    const bool visual = run.visual >= 0;
    done_.push_back(std::move(run));
    if (visual) {
      groups.run_waiting();
      places_.push_back(here());
    }
  }
  Tensor hidden = groups.finish();
  answer.prompt_tokens = groups.tokens();
  answer.timings.prefill = groups.seconds();
  return hidden;
}

Answer SessionState::ask(std::vector<ContentPart> parts, const GenerateOptions& options,
                         const std::function<void(std::string_view)>& on_piece) {
  check_sampling(options.sampling);
  const Stopwatch total;
  Place before = here();
  size_t places = places_.size();
  Answer answer;
  try {
    Prompt prompt = plan_prompt(std::move(parts));
    if (prompt.from_place) {
      go_back_to(*prompt.from_place);
      before = here();  // rows given up cannot come back; the next question adds them again
    }
    places = places_.size();
    const Tensor hidden = prefill(prompt, options.cancel, answer);
    places_.push_back(here());
    const size_t asked_tokens = history_.size();

    const Stopwatch generating;
    const double prefilled = total.seconds();
    bool first = true;
    const auto timed_piece = [&](std::string_view piece) {
      if (std::exchange(first, false)) answer.timings.first_token = total.seconds();
      on_piece(piece);
    };
    GenerationState state{model(), *store_, *attention_, *positions_, history_};
    Generated generated = generate(engine_->context, state, hidden, options, timed_piece);
    if (first) answer.timings.first_token = prefilled;
    answer.timings.generate = generating.seconds();
    answer.text = std::move(generated.text);
    answer.ids = std::move(generated.ids);
    answer.stop = stop_reason_name(generated.reason);

    done_.push_back({{history_.begin() + static_cast<int64_t>(asked_tokens), history_.end()}, -1});
    prompt.conversation.turns.push_back({"assistant", {{Modality::text, answer.text}}});
    conversation_ = std::move(prompt.conversation);
    inputs_asked_ = inputs_.size();
  } catch (...) {
    places_.resize(places);
    go_back(before);
    throw;
  }
  if (auto* sparse = dynamic_cast<SparseAttention*>(attention_.get())) {
    answer.attention_report = to_string(sparse->report());
    sparse->clear_report();
  }
  answer.row_bytes = store_->bytes();
  answer.timings.total = total.seconds();
  return answer;
}

}  // namespace kinora
