// What `ask`, `chat` and `watch` say about an answer besides its text.
#pragma once

#include <kinora/session.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/terminal/work_progress.h"

namespace kinora::cli {

// "about 600 frames, 9,629 tokens, 130 MiB of keys and values, 12 s"; what a budget changes and
// what to beware of is not in it (Forecast::changes, Forecast::warnings).
std::string forecast_line(const Forecast& forecast);
nlohmann::json forecast_json(const Forecast& forecast);
// Frames, tokens and seconds by stage; `load` and `open` are seconds before the question.
std::string timing_line(const Answer& answer, double load, double open);

// The stages of a question and their weights, for its progress; the answer counts as a usual one.
std::vector<ExpectedStage> expected_stages(const Forecast& forecast, int64_t max_tokens);

// "120 frames and 3623 tokens read in 9.5 s, 72 tokens of answer at 126.6/s, 4.0 a pass, 1.4 x
// plain": what everyone wants to know, and what a draft was worth if it was of use.
std::string closing_line(const Answer& answer);
// The end of it, for answers that follow one another; nothing where no draft was of use.
std::string drafted_line(const Answer& answer);
// What attention and drafts did, where they did something, and all timings.
std::string report_text(const Answer& answer, double load, double open);

// What sparse attention did: a line for the whole and one for each of its parts.
std::string attention_text(const AttentionSummary& summary);
// What drafting was worth for an answer of this many tokens, made in this time.
std::string draft_text(const DraftSummary& draft, int64_t tokens, double seconds);
nlohmann::json draft_json(const Answer& answer);  // null without a draft

nlohmann::json answer_json(const Answer& answer, const std::vector<InputInfo>& inputs,
                           const Forecast& forecast, double load, double open);

}  // namespace kinora::cli
