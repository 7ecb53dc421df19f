// Answers as OpenAI's clients read them. Pure: values in, JSON out. Used by chat.cc and
// responses.cc.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "generate/token_scores.h"
#include "server/shelf/shelf.h"
#include "text/tokenizer.h"

namespace kinora::server {

// What every message of one answer has in common.
struct AnswerHead {
  std::string id;
  std::string model;
  int64_t created = 0;  // seconds since 1970
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t visual_tokens = 0;
  int64_t completion_tokens = 0;

  void add(const Told& told, bool first);
};

// "stop" or "length".
std::string finish_reason(const Answer& answer);
nlohmann::json evidence_json(const Answer& answer);
nlohmann::json usage_json(const Usage& usage);
// kinora's own: inputs as they were looked at, seconds by stage, warnings.
nlohmann::json report_json(const Told& told);
nlohmann::json scores_json(const std::vector<TokenScores>& scores, const Tokenizer& tokenizer);

nlohmann::json chat_completion(const AnswerHead& head, const nlohmann::json& choices,
                               const Usage& usage, const nlohmann::json& report);
nlohmann::json chat_choice(int64_t index, const Told& told, const nlohmann::json& scores);
// One piece of a stream; `delta` and `finish` as OpenAI has them.
nlohmann::json chat_chunk(const AnswerHead& head, int64_t index, nlohmann::json delta,
                          const nlohmann::json& scores, const nlohmann::json& finish);

// "data: …\n\n"
std::string event(const nlohmann::json& data);
// "event: …\ndata: …\n\n"
std::string event(const std::string& name, const nlohmann::json& data);

}  // namespace kinora::server
