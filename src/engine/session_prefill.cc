// Reading a prompt into memory: text runs are embedded, visual ones are taken in, and groups of
// both go through the decoder.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "engine/group_prefill.h"
#include "engine/ingest/ingest.h"
#include "engine/ingest/segment_reader.h"
#include "engine/session_state.h"

namespace kinora {
std::unique_ptr<Ingest> SessionState::start_ingest(const Prompt& prompt, size_t runs_end,
                                                   SpanRecorder& spans) {
  std::vector<size_t> inputs;
  for (size_t i = prompt.kept_runs; i < runs_end; ++i) {
    if (prompt.runs[i].visual < 0) continue;
    const size_t input = prompt.segments[static_cast<size_t>(prompt.runs[i].visual)].input;
    if (inputs.empty() || inputs.back() != input) inputs.push_back(input);
  }
  if (inputs.empty()) return nullptr;
  std::vector<IngestItem> items;
  for (const size_t input : inputs) {
    items.push_back(ingest_item(inputs_[input], options_.frames_per_group, tokens_));
  }
  return make_ingest(*engine_, std::move(items), {options_.overlap, options_.decode_threads},
                     *progress_, spans);
}

std::vector<std::string> damage_of(const VisualInput& input, const ReadReport& report) {
  std::vector<std::string> texts;
  for (const DamagedSpan& span : report.damaged) {
    texts.push_back(
        fmt::format("{} is damaged from {:.2f} s to {:.2f} s; {} sampled frame(s) there were lost",
                    input.source, span.from, span.to, span.lost));
  }
  return texts;
}

void SessionState::end_input(VisualInput& input, const ReadReport& report, Answer& answer) {
  input.read = true;
  answer.timings.decode += report.decode_cpu_seconds;
  if (!input.shortfall.empty()) answer.warnings.push_back(input.shortfall);
  const std::vector<std::string> damage = damage_of(input, report);
  answer.warnings.insert(answer.warnings.end(), damage.begin(), damage.end());
}

int64_t SessionState::group_tokens() const {
  return options_.max_group_tokens > 0 ? options_.max_group_tokens
                                       : std::numeric_limits<int64_t>::max();
}

std::vector<TokenInfo> SessionState::place(size_t number, const TokenGroup& group,
                                           int64_t ordinal) {
  VisualInput& input = inputs_[number];
  const int64_t unit = input.plan.tokens_per_unit;
  std::vector<TokenInfo> tokens;
  int64_t seen = 0;
  place_visual(*positions_, input.plan, {number, group.first, group.count}, group.times, group.last,
               [&](std::span<const TokenInfo> some) {
                 const int64_t end = seen + std::ssize(some);
                 for (size_t i = tokens.size(); i < group.kept.size() && group.kept[i] < end; ++i) {
                   tokens.push_back(some[static_cast<size_t>(group.kept[i] - seen)]);
                 }
                 seen = end;
               });
  if (tokens.size() < group.kept.size()) {  // of a file, that is
    throw Error(ErrorKind::bad_input,
                fmt::format("there is room for {} tokens and not {}", seen, group.kept.back() + 1));
  }
  input.unit_tokens.resize(static_cast<size_t>(group.first));
  if (tokens_.prunes()) {
    const int64_t before = group.first * unit;
    std::vector<int32_t>& kept = input.kept;
    kept.erase(std::lower_bound(kept.begin(), kept.end(), before), kept.end());
    for (const int32_t token : group.kept) kept.push_back(static_cast<int32_t>(before + token));
  }
  auto next = group.kept.begin();
  for (int64_t i = 0; i < group.count; ++i) {
    const auto end = std::lower_bound(next, group.kept.end(), (i + 1) * unit);
    input.unit_tokens.push_back(end - next);
    // What trails the last unit belongs to it.
    const int64_t rows = (i + 1 < group.count ? end : group.kept.end()) - next;
    if (rows > 0) visual_rows_.push_back({number, ordinal, rows, group.first + i, rows});
    ordinal += rows;
    next = end;
  }
  if (group.count == 0 && group.first > 0 && !group.kept.empty()) {  // it came after its units
    const auto rows = std::ssize(group.kept);
    visual_rows_.push_back({number, ordinal, rows, group.first - 1, rows});
  }
  return tokens;
}

Tensor SessionState::prefill(const QuestionPlan& plan, size_t runs_end, const CancelToken& cancel,
                             SpanRecorder& spans, Answer& answer, RowMass* mass) {
  const Prompt& prompt = plan.prompt;
  GroupPrefillOptions settings;
  settings.mass = mass;
  settings.max_tokens = group_tokens();
  settings.expected_tokens = prompt.tokens;
  settings.max_row_bytes = plan.budget.row_room;
  settings.share = &share_;
  settings.positions = positions_.get();
  settings.observer = observer_;
  settings.drafter = drafter_.get();
  settings.text_tokens = std::ssize(transcript_.text());
  settings.cancel = cancel;
  for (const PromptRun& run : prompt.runs) {  // what follows the last input is the question
    if (run.visual >= 0) settings.question.clear();
    settings.question.insert(settings.question.end(), run.ids.begin(), run.ids.end());
  }
  const std::unique_ptr<Ingest> ingest = start_ingest(prompt, runs_end, spans);
  std::optional<SegmentReader> reader;
  if (ingest) reader.emplace(*ingest, cancel);
  GroupPrefill groups(*engine_, *memory_, *attention_, std::move(settings), *progress_, spans);
  if (prompt.closes_video) {
    const VisualPlan& open = inputs_[0].plan;
    std::vector<TokenInfo> tokens;
    positions_->visual(open, open.units, 0, {}, true, tokens);
    Tensor closing = closing_tokens(*engine_, open);
    if (closing.defined()) groups.add(std::move(closing), std::move(tokens));
  }
  for (size_t i = prompt.kept_runs; i < runs_end; ++i) {
    PromptRun run = prompt.runs[i];
    if (run.visual < 0) {
      if (i == prompt.kept_runs) {
        run.ids.erase(run.ids.begin(), run.ids.begin() + static_cast<int64_t>(prompt.kept_ids));
      }
      const auto read_text = [&](PromptRun text) {
        std::vector<TokenInfo> tokens;
        positions_->text(static_cast<int64_t>(text.ids.size()), tokens);
        groups.add(model().decoder().embed(engine_->context, text.ids), std::move(tokens),
                   text.ids);
        transcript_.add(text);
      };
      // A long text leaves places on its way, so that another question about it need not read it
      // again.
      const int64_t piece = group_tokens();
      auto next = run.ids.begin();
      while (run.ids.end() - next > piece) {
        read_text({{next, next + piece}, -1});
        next += piece;
        groups.run_waiting();
        places_.push_back(here());
      }
      if (next != run.ids.end()) read_text({{next, run.ids.end()}, -1});
      continue;
    }
    const VisualSegment& segment = prompt.segments[static_cast<size_t>(run.visual)];
    VisualInput& input = inputs_[segment.input];
    for (int64_t left = segment.count; left > 0;) {
      TokenGroup group = reader->take(left, input.plan.tokens_per_unit);
      left -= group.count;
      answer.frames += static_cast<int64_t>(group.frames.size());
      answer.seen_tokens +=
          group.count * input.plan.tokens_per_unit + (group.last ? input.plan.trailing_tokens : 0);
      answer.visual_tokens += group.tokens.size(0);
      std::vector<TokenInfo> tokens = place(segment.input, group, groups.next_ordinal());
      groups.add(std::move(group.tokens), std::move(tokens));
      if (reader->at_end_of_group()) groups.end_frames();
    }
    transcript_.add(run);
    if (segment.first + segment.count == input.plan.units) {
      const bool one_group = options_.max_group_tokens <= 0;
      if (!one_group) groups.run_waiting();
      end_input(input, reader->report(), answer);
      if (!one_group) places_.push_back(here());
    }
  }
  Tensor hidden = groups.finish();
  answer.prompt_tokens = groups.tokens();
  answer.timings.prefill = groups.seconds();
  if (ingest) {
    answer.timings.vision = ingest->vision_seconds();
    answer.timings.decode_wait = ingest->wait_seconds();
  }
  return hidden;
}

}  // namespace kinora
