// Taking in a source without a known end: as much of it as has come, between questions.
#include "engine/session_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "engine/attention_choice.h"
#include "engine/group_prefill.h"
#include "engine/ingest/segment_reader.h"
#include "engine/session_state.h"

namespace kinora {
namespace {

// Kept free for a question and its answer when a budget is full.
constexpr int64_t question_tokens = 256;

}  // namespace

const VisualInput& SessionState::open(const VisualRequest& request, const CancelToken& cancel) {
  if (!inputs_.empty() || transcript_.here().items > 0) {
    throw Error(ErrorKind::usage,
                "a source that is taken in as it comes must be the first thing "
                "in its session: open another session for it");
  }
  if (retention_.needs_question()) {
    throw Error(ErrorKind::unsupported,
                std::string(retention_.rule->name()) +
                    " chooses rows by the question, which is not known while a source "
                    "is taken in; keep rows by key-norm");
  }
  OpenOptions open;
  open.cancel = cancel;
  open.progress = progress_.get();
  open.live = true;
  VisualInput fresh =
      open_endless(model(), request, options_.frame_share, options_.pixel_share, open);
  auto source = std::make_unique<OpenSource>();
  source->request = request;
  source->opening = asked_.conversation;
  attention_ =
      choose_attention(*engine_, options_, tokens_.prunes() ? 0 : fresh.plan.tokens_per_unit);
  inputs_.push_back(std::move(fresh));
  try {
    std::vector<IngestItem> items{ingest_item(inputs_.back(), options_.frames_per_group, tokens_)};
    source->ingest = make_ingest(*engine_, std::move(items), {true, options_.decode_threads},
                                 *progress_, source->spans);
  } catch (...) {
    inputs_.clear();
    throw;
  }
  source_ = std::move(source);
  return inputs_.back();
}

TakenIn SessionState::take_in(int64_t least_frames, const CancelToken& cancel,
                              int64_t most_frames) {
  if (!source_) {
    throw Error(ErrorKind::usage, "nothing is open to be taken in: open a source first");
  }
  TakenIn taken;
  while (!source_->ended) {
    gather(least_frames - taken.frames, cancel);
    if (source_->waiting.empty()) break;
    absorb(cancel, taken);
    if (most_frames > 0 && taken.frames >= most_frames) break;
  }
  if (source_->ended && source_->error)
    std::rethrow_exception(std::exchange(source_->error, nullptr));
  taken.ended = source_->ended;
  if (source_->ingest) {
    const int64_t dropped = source_->ingest->dropped();
    taken.dropped = dropped - std::exchange(source_->dropped, dropped);
  }
  if (!inputs_[0].samples.empty()) taken.until = inputs_[0].samples.back().time;
  if (taken.frames > 0) lay_out_anew(asked_, inputs_[0]);
  return taken;
}

// What can be had at once, up to a prefill group; waits for something while frames are wanted.
void SessionState::gather(int64_t wanted_frames, const CancelToken& cancel) {
  OpenSource& source = *source_;
  int64_t tokens = 0;
  for (const TokenGroup& group : source.waiting) {
    if (group.tokens.defined()) tokens += group.tokens.size(0);
  }
  try {
    while (tokens < options_.max_group_tokens) {
      std::optional<TokenGroup> group = source.ingest->ready();
      if (!group && source.waiting.empty() && wanted_frames > 0) {
        group = source.ingest->next(cancel);
      }
      if (!group) return;
      if (group->tokens.defined()) tokens += group->tokens.size(0);
      source.number(*group);
      source.waiting.push_back(std::move(*group));
      if (source.waiting.back().report) return;
    }
  } catch (...) {
    if (cancel.cancelled()) throw;
    source.error = std::current_exception();
    if (source.waiting.empty()) source.ended = true;
  }
}

// Units are numbered as they come, whatever was dropped before them, and times go on when a source
// is opened again.
void OpenSource::number(TokenGroup& group) {
  if (group.report) return;
  group.first = next_unit;
  next_unit += group.count;
  for (double& time : group.times) time += offset;
  for (SampledFrame& frame : group.frames) {
    frame.time += offset;
    newest = frame.time;
  }
  came = std::chrono::steady_clock::now();
}

void SessionState::resume(const CancelToken& cancel) {
  if (!source_ || !source_->request || source_->request->coming.closes) {
    throw Error(ErrorKind::usage, "only a source that was opened to be resumed can be");
  }
  if (!source_->ended) {
    throw Error(ErrorKind::usage, inputs_[0].source + " has not ended: there is nothing to resume");
  }
  OpenSource& source = *source_;
  OpenOptions open;
  open.cancel = cancel;
  open.progress = progress_.get();
  open.live = true;
  open.folder_fps = source.request->folder_fps;
  open.limits = source.request->source_limits;
  std::unique_ptr<Video> video = open_video(source.request->source, open);
  VisualInput& input = inputs_[0];
  source.ingest = nullptr;  // reads the old one
  input.video = std::move(video);
  std::vector<IngestItem> items{ingest_item(input, options_.frames_per_group, tokens_)};
  source.ingest = make_ingest(*engine_, std::move(items), {true, options_.decode_threads},
                              *progress_, source.spans);
  source.dropped = 0;
  source.ended = false;
  if (source.next_unit == 0) return;
  const std::chrono::duration<double> away = std::chrono::steady_clock::now() - source.came;
  const double step = input.open->way == FrameChoice::Way::rate ? 1 / input.open->fps : 0;
  source.offset = source.newest + std::max(away.count(), step);
}

// What stands between two units does not depend on the video before them, so that of this only the
// newest unit is laid out again: a source may be days long.
std::vector<PromptRun> SessionState::waiting_runs() const {
  const VisualInput& input = inputs_[0];
  const bool first = source_->place == 0;
  if (!first && !input.plan.units_apart) return {};  // the video goes on without a word
  VisualLook look{{}, input.plan};
  look.plan.units = 0;
  if (!first) {
    look.samples.assign(input.samples.end() - input.plan.frames_per_unit, input.samples.end());
    look.plan.units = 1;
  }
  for (const TokenGroup& group : source_->waiting) {
    look.samples.insert(look.samples.end(), group.frames.begin(), group.frames.end());
    look.plan.units += group.count;
  }
  std::vector<VisualSegment> segments;
  Turn turn{"user", lay_out(look, {}, 0, segments)};
  turn.parts.push_back({Modality::text, "?"});  // any text will do: it comes after the video
  Conversation conversation = source_->opening;
  conversation.turns.push_back(std::move(turn));
  std::vector<PromptRun> runs = model().render(conversation);
  const auto visual = [](const PromptRun& run) { return run.visual >= 0; };
  while (!runs.empty() && !visual(runs.back())) runs.pop_back();
  if (!first) runs.erase(runs.begin(), std::find_if(runs.begin(), runs.end(), visual) + 1);
  return runs;
}

// All that waits comes into memory, or none of it.
void SessionState::absorb(const CancelToken& cancel, TakenIn& taken) {
  OpenSource& source = *source_;
  VisualInput& input = inputs_[0];
  go_back_to(source.place);
  const bool first = source.place == 0;
  GroupPrefillOptions settings;
  settings.max_tokens = options_.max_group_tokens;
  settings.max_row_bytes = row_room() - question_tokens * memory_->layout().bytes_per_token();
  settings.share = &share_;
  settings.observer = observer_;
  settings.drafter = drafter_.get();
  settings.text_tokens = std::ssize(transcript_.text());
  settings.cancel = cancel;
  int64_t tokens_read = 0;
  try {
    GroupPrefill groups(*engine_, *memory_, *attention_, std::move(settings), *progress_,
                        source.spans);
    const std::vector<PromptRun> runs = waiting_runs();
    auto next = runs.begin();
    // The next run of text, if there is one, and the place of what follows it.
    const auto go_on = [&] {
      if (next != runs.end() && next->visual < 0) {
        std::vector<TokenInfo> tokens;
        positions_->text(std::ssize(next->ids), tokens);
        groups.add(model().decoder().embed(engine_->context, next->ids), std::move(tokens),
                   next->ids);
        transcript_.add(*next++);
      }
      if (next == runs.end()) return;
      transcript_.add({{}, static_cast<int32_t>(transcript_.here().visuals)});
      ++next;
    };
    const auto read = [&](const TokenGroup& group) {
      std::vector<TokenInfo> tokens = place(0, group, groups.next_ordinal());
      check_reach(memory_->token_count() + groups.waiting() + static_cast<int64_t>(tokens.size()));
      if (group.tokens.defined()) groups.add(group.tokens, std::move(tokens));
    };
    for (const TokenGroup& group : source.waiting) {
      if (group.report) continue;
      if (!input.plan.units_apart) {
        go_on();
        read(group);
      }
      for (int64_t unit = 0; input.plan.units_apart && unit < group.count; ++unit) {
        go_on();
        read(piece_of(group, unit, 1, input.plan.tokens_per_unit));
      }
      groups.end_frames();
    }
    groups.run_waiting();
    tokens_read = groups.tokens();
  } catch (...) {
    go_back_to(source.place);
    throw;
  }
  for (const TokenGroup& group : std::exchange(source.waiting, {})) {
    if (group.report) {
      source.ended = true;
      const std::vector<std::string> damage = damage_of(input, *group.report);
      taken.warnings.insert(taken.warnings.end(), damage.begin(), damage.end());
      continue;
    }
    input.samples.insert(input.samples.end(), group.frames.begin(), group.frames.end());
    input.plan.units += group.count;
    source.closed = source.closed || group.last;
    taken.frames += static_cast<int64_t>(group.frames.size());
  }
  taken.tokens += tokens_read;
  if (first && input.plan.units > 0) {
    places_.push_back(here());
    source.place = 1;
  } else if (!first) {
    places_.back() = here();
  } else {
    go_back_to(0);  // the source ended before anything came
  }
}

// A video that grows must end where the conversation may not grow any more.
void SessionState::check_reach(int64_t tokens) const {
  const ModelInfo& info = model().info();
  if (!memory_->reads_near() && positions_->next() > info.max_position) {
    throw Error(ErrorKind::resource,
                fmt::format("{} reaches position {} but {} was made for positions below {}; open "
                            "it again, or look less often",
                            inputs_[0].source, positions_->next(), info.name, info.max_position));
  }
  if (options_.max_context > 0 &&
      tokens > options_.max_context - std::min(question_tokens, options_.max_context / 2)) {
    throw Error(ErrorKind::resource,
                fmt::format("the budget of {} tokens of context is used up by {}; raise it, or "
                            "open it again",
                            options_.max_context, inputs_[0].source));
  }
}

int64_t SessionState::row_room() const {
  BudgetRequest request = budget_request({});
  request.text_tokens = [](std::span<const int64_t>) { return int64_t{0}; };
  return plan_budget(request).row_room;
}

}  // namespace kinora
