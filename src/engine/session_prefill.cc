// Reading a prompt into memory: text runs are embedded, visual ones come out of the feed, and
// groups of both go through the decoder.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/group_prefill.h"
#include "engine/session_state.h"
#include "engine/visual_feed.h"

namespace kinora {
namespace {

// Rows [begin, begin + count).
Tensor copy_rows(const Tensor& source, int64_t begin, int64_t count) {
  Tensor out(source.dtype(), {count, source.size(1)}, source.device());
  const ConstTensorView rows = source.view().rows(begin, count);
  copy_bytes(out.view().raw(), out.device(), rows.raw(), source.device(),
             static_cast<size_t>(out.bytes()));
  return out;
}

// Hands out the groups of a feed in pieces that end where a segment ends.
class SegmentReader {
 public:
  SegmentReader(VisualFeed& feed, const std::vector<VisualInput>& inputs)
      : feed_(feed), inputs_(inputs) {}

  // At most `units` units of the input, as they lie in one group.
  EncodedGroup take(size_t input, int64_t units) {
    if (!group_) group_ = feed_.next();
    if (!group_ || group_->report) {
      throw Error(ErrorKind::internal, "an input ended before its frames did");
    }
    if (group_->count <= units) return std::move(*std::exchange(group_, std::nullopt));
    const int64_t rows = units * inputs_[input].plan.tokens_per_unit;
    EncodedGroup piece = *group_;
    piece.count = units;
    piece.last = false;
    piece.frames = 0;  // counted with the last piece
    piece.times.resize(static_cast<size_t>(units));
    piece.tokens = copy_rows(group_->tokens, 0, rows);
    group_->first += units;
    group_->count -= units;
    group_->times.erase(group_->times.begin(), group_->times.begin() + units);
    group_->tokens = copy_rows(group_->tokens, rows, group_->tokens.size(0) - rows);
    return piece;
  }
  bool at_end_of_group() const { return !group_; }

  ReadReport report() {
    const std::optional<EncodedGroup> end = feed_.next();
    if (!end || !end->report) throw Error(ErrorKind::internal, "an input ended without a report");
    return *end->report;
  }

 private:
  VisualFeed& feed_;
  const std::vector<VisualInput>& inputs_;
  std::optional<EncodedGroup> group_;  // what is left of it
};

}  // namespace

std::unique_ptr<VisualFeed> SessionState::start_feed(const Prompt& prompt, size_t runs_end,
                                                     const CancelToken& cancel,
                                                     SpanRecorder& spans) {
  std::vector<VisualInput*> inputs;
  for (size_t i = prompt.kept_runs; i < runs_end; ++i) {
    if (prompt.runs[i].visual < 0) continue;
    VisualInput* input =
        &inputs_[prompt.segments[static_cast<size_t>(prompt.runs[i].visual)].input];
    if (inputs.empty() || inputs.back() != input) inputs.push_back(input);
  }
  if (inputs.empty()) return nullptr;
  const FeedOptions options{options_.frames_per_group, options_.overlap, options_.decode_threads};
  return make_visual_feed(*engine_, std::move(inputs), options, *progress_, spans, cancel);
}

void SessionState::end_input(VisualInput& input, const ReadReport& report, Answer& answer) {
  input.read = true;
  answer.timings.decode += report.decode_cpu_seconds;
  if (!input.shortfall.empty()) answer.warnings.push_back(input.shortfall);
  for (const DamagedSpan& span : report.damaged) {
    answer.warnings.push_back(
        fmt::format("{} is damaged from {:.2f} s to {:.2f} s; {} sampled frame(s) there were lost",
                    input.source, span.from, span.to, span.lost));
  }
}

Tensor SessionState::prefill(const Prompt& prompt, size_t runs_end, const CancelToken& cancel,
                             SpanRecorder& spans, Answer& answer) {
  GroupPrefillOptions settings;
  settings.max_tokens = options_.max_group_tokens;
  settings.expected_tokens = prompt.tokens;
  settings.max_row_bytes = row_budget();
  settings.share = &share_;
  settings.positions = positions_.get();
  settings.drafter = drafter_.get();
  settings.text_tokens = std::ssize(transcript_.text());
  settings.cancel = cancel;
  for (const PromptRun& run : prompt.runs) {  // what follows the last input is the question
    if (run.visual >= 0) settings.question.clear();
    settings.question.insert(settings.question.end(), run.ids.begin(), run.ids.end());
  }
  const std::unique_ptr<VisualFeed> feed = start_feed(prompt, runs_end, cancel, spans);
  std::optional<SegmentReader> reader;
  if (feed) reader.emplace(*feed, inputs_);
  GroupPrefill groups(*engine_, *memory_, *attention_, std::move(settings), *progress_, spans);
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
      const int64_t piece = std::max<int64_t>(1, options_.max_group_tokens);
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
      EncodedGroup group = reader->take(segment.input, left);
      left -= group.count;
      answer.frames += group.frames;
      answer.visual_tokens += group.tokens.size(0);
      std::vector<TokenInfo> tokens;
      positions_->visual(input.plan, group.first, group.count, group.times, group.last, tokens);
      groups.add(std::move(group.tokens), std::move(tokens));
      if (reader->at_end_of_group()) groups.end_frames();
    }
    transcript_.add(run);
    if (segment.first + segment.count == input.plan.units) {
      groups.run_waiting();
      end_input(input, reader->report(), answer);
      places_.push_back(here());
    }
  }
  Tensor hidden = groups.finish();
  answer.prompt_tokens = groups.tokens();
  answer.timings.prefill = groups.seconds();
  if (feed) {
    answer.timings.vision = feed->vision_seconds();
    answer.timings.decode_wait = feed->wait_seconds();
  }
  return hidden;
}

}  // namespace kinora
