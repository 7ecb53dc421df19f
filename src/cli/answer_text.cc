#include "cli/answer_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/terminal/terminal.h"

namespace kinora::cli {
namespace {

double rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

// Times the speed that the answer would have had at one token a pass; 0: not known.
double speed_up(const DraftSummary& draft, double tokens, double seconds) {
  return rate(tokens * draft.plain_seconds, seconds);
}

// "4.0 a pass, 1.4 x plain": what a draft was worth, where some of it was right; else nothing.
std::string draft_worth(const Answer& answer) {
  if (!answer.draft || answer.draft->right == 0) return "";
  const auto tokens = static_cast<double>(answer.ids.size());
  std::string text =
      fmt::format("{:.1f} a pass", rate(tokens, static_cast<double>(answer.draft->passes)));
  if (const double times = speed_up(*answer.draft, tokens, answer.timings.generate); times > 0) {
    text += fmt::format(", {:.1f} x plain", times);
  }
  return text;
}

}  // namespace

std::string forecast_line(const Forecast& forecast) {
  return fmt::format("{} frames, {} tokens, {} of keys and values, {} of memory, about {}",
                     forecast.frames, forecast.tokens, human_bytes(forecast.row_bytes),
                     human_bytes(forecast.memory_bytes), human_seconds(forecast.seconds));
}

nlohmann::json forecast_json(const Forecast& forecast) {
  return {{"frames", forecast.frames},
          {"tokens", forecast.tokens},
          {"visual_tokens", forecast.visual_tokens},
          {"row_bytes", forecast.row_bytes},
          {"memory_bytes", forecast.memory_bytes},
          {"seconds", forecast.seconds},
          {"stages",
           {{"decode", forecast.decode_seconds},
            {"vision", forecast.vision_seconds},
            {"prefill", forecast.prefill_seconds},
            {"token", forecast.token_seconds}}},
          {"changes", forecast.changes},
          {"warnings", forecast.warnings}};
}

std::vector<ExpectedStage> expected_stages(const Forecast& forecast, int64_t max_tokens) {
  constexpr int64_t usual_answer = 64;
  const int64_t answer = std::min(max_tokens, usual_answer);
  std::vector<ExpectedStage> stages = {{"decode", forecast.decode_seconds},
                                       {"vision", forecast.vision_seconds},
                                       {"prefill", forecast.prefill_seconds}};
  if (answer > 0) {
    stages.push_back({"answer", static_cast<double>(answer) * forecast.token_seconds, answer});
  }
  return stages;
}

std::string closing_line(const Answer& answer) {
  const Timings& t = answer.timings;
  const auto tokens = static_cast<double>(answer.ids.size());
  const std::string worth = draft_worth(answer);
  return fmt::format("{} frames and {} tokens read in {}, {} tokens of answer at {:.1f}/s{}{}\n",
                     answer.frames, answer.prompt_tokens, human_seconds(t.first_token),
                     answer.ids.size(), rate(tokens, t.generate), worth.empty() ? "" : ", ", worth);
}

std::string drafted_line(const Answer& answer) {
  const std::string worth = draft_worth(answer);
  if (worth.empty()) return "";
  return fmt::format("{} tokens at {:.1f}/s, {}\n", answer.ids.size(),
                     rate(static_cast<double>(answer.ids.size()), answer.timings.generate), worth);
}

namespace {

// What was asked for is not always what ran.
std::string dtype_text(const AttentionSummary& summary) {
  if (summary.dtype == "bf16") return "";
  return fmt::format("attention in {}: {} of {} launches, the others in bf16\n", summary.dtype,
                     summary.fp8_launches, summary.fp8_launches + summary.bf16_launches);
}

}  // namespace

std::string report_text(const Answer& answer, double load, double open) {
  std::string text;
  if (answer.visual_tokens < answer.seen_tokens) {
    text += fmt::format(
        "tokens: {} of {} visual ones reached the decoder ({:.1f} %)\n", answer.visual_tokens,
        answer.seen_tokens,
        100 * static_cast<double>(answer.visual_tokens) / static_cast<double>(answer.seen_tokens));
  }
  if (const auto& report = answer.attention_report) {
    text += report->dense_calls < report->calls ? attention_text(*report) : dtype_text(*report);
  }
  if (answer.draft) {
    text += draft_text(*answer.draft, static_cast<int64_t>(answer.ids.size()),
                       answer.timings.generate) +
            "\n";
  }
  return text + timing_line(answer, load, open) + "\n";
}

std::string timing_line(const Answer& answer, double load, double open) {
  const Timings& t = answer.timings;
  return fmt::format(
      "{} frames, {} tokens | load {}, open {}, decode {} CPU ({} waited), vision {}, prefill {} "
      "({:.0f} tokens/s), first token {}, {} tokens at {:.1f}/s | peak memory {}",
      answer.frames, answer.prompt_tokens, human_seconds(load), human_seconds(open),
      human_seconds(t.decode), human_seconds(t.decode_wait), human_seconds(t.vision),
      human_seconds(t.prefill), rate(static_cast<double>(answer.prompt_tokens), t.prefill),
      human_seconds(t.first_token), answer.ids.size(),
      rate(static_cast<double>(answer.ids.size()), t.generate), human_bytes(peak_memory()));
}

std::string draft_text(const DraftSummary& draft, int64_t tokens, double seconds) {
  const auto count = static_cast<double>(tokens);
  const std::string name = draft.kind.empty() ? "draft" : fmt::format("draft ({})", draft.kind);
  if (draft.drafted == 0) return name + ": no tokens proposed, which would not have paid";
  std::string text = fmt::format(
      "{}: {} of {} proposed tokens were right, {:.2f} tokens a pass (the model's own included)",
      name, draft.right, draft.drafted,
      count / static_cast<double>(std::max<int64_t>(1, draft.passes)));
  if (const double times = speed_up(draft, count, seconds); times > 0) {
    text += fmt::format(", about {:.2f} x the speed without", times);
  }
  return text;
}

std::string attention_text(const AttentionSummary& summary) {
  std::string text = fmt::format(
      "attention: {:.1f} % of the dense FLOPs, index {:.3f} s, run {:.3f} s, {} of {} calls "
      "dense\n",
      100 * summary.computed_share, summary.index_seconds, summary.run_seconds, summary.dense_calls,
      summary.calls);
  for (const AttentionSummary::Part& part : summary.parts) {
    text += fmt::format("  {}: {} heads, {:.1f} % of the computed pairs, {:.3f} s\n", part.name,
                        part.heads, 100 * part.share, part.seconds);
  }
  return text + dtype_text(summary);
}

nlohmann::json draft_json(const Answer& answer) {
  if (!answer.draft) return nullptr;
  return {{"passes", answer.draft->passes},
          {"drafted", answer.draft->drafted},
          {"right", answer.draft->right},
          {"plain_seconds", answer.draft->plain_seconds},
          {"kind", answer.draft->kind}};
}

namespace {

nlohmann::json evidence_json(const Answer& answer) {
  nlohmann::json spans = nlohmann::json::array();
  for (const EvidenceSpan& span : answer.evidence) {
    spans.push_back(
        {{"input", span.input}, {"start", span.start}, {"end", span.end}, {"share", span.share}});
  }
  return spans;
}

}  // namespace

nlohmann::json answer_json(const Answer& answer, const std::vector<InputInfo>& inputs,
                           const Forecast& forecast, double load, double open) {
  const Timings& t = answer.timings;
  nlohmann::json described = nlohmann::json::array();
  for (const InputInfo& input : inputs) {
    described.push_back({{"source", input.source},
                         {"kind", input.kind},
                         {"width", input.width},
                         {"height", input.height},
                         {"tokens", input.tokens},
                         {"times", input.times},
                         {"sound", input.sound},
                         {"subtitles", input.subtitles},
                         {"subtitle_languages", input.languages}});
  }
  return {{"answer", answer.text},
          {"stop", answer.stop},
          {"evidence", evidence_json(answer)},
          {"frames", answer.frames},
          {"inputs", described},
          {"tokens",
           {{"prompt", answer.prompt_tokens},
            {"seen", answer.seen_tokens},
            {"visual", answer.visual_tokens},
            {"answer", answer.ids.size()}}},
          {"expected", forecast_json(forecast)},
          {"timings",
           {{"load", load},
            {"open", open},
            {"decode", t.decode},
            {"decode_wait", t.decode_wait},
            {"vision", t.vision},
            {"prefill", t.prefill},
            {"first_token", t.first_token},
            {"generate", t.generate},
            {"total", t.total}}},
          {"row_bytes", answer.row_bytes},
          {"attention", answer.attention_report ? attention_text(*answer.attention_report) : ""},
          {"draft", draft_json(answer)},
          {"peak_memory", peak_memory()},
          {"warnings", answer.warnings}};
}

}  // namespace kinora::cli
