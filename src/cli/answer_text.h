// What `ask` and `chat` say about an answer besides its text.
#pragma once

#include <kinora/session.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kinora::cli {

// "about 600 frames, 9,629 tokens, 130 MiB of keys and values, 12 s"
std::string forecast_line(const Forecast& forecast);
nlohmann::json forecast_json(const Forecast& forecast);
// Frames, tokens and seconds by stage; `load` and `open` are seconds before the question.
std::string timing_line(const Answer& answer, double load, double open);

// What sparse attention did: a line for the whole and one for each of its parts.
std::string attention_text(const AttentionSummary& summary);
// What drafting was worth for an answer of this many tokens, made in so many seconds.
std::string draft_text(const DraftSummary& draft, int64_t tokens, double seconds);

nlohmann::json answer_json(const Answer& answer, const std::vector<InputInfo>& inputs,
                           const Forecast& forecast, double load, double open);

}  // namespace kinora::cli
