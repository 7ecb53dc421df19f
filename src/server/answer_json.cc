#include "server/answer_json.h"

#include "server/api_error.h"

namespace kinora::server {

using nlohmann::json;

void Usage::add(const Told& told, bool first) {
  completion_tokens += std::ssize(told.answer.ids);
  if (!first) return;
  prompt_tokens = told.prompt_tokens;
  cached_tokens = told.cached_tokens;
  visual_tokens = told.visual_tokens;
}

std::string finish_reason(const Answer& answer) {
  return answer.stop == "stop-token" || answer.stop == "stop-string" ? "stop" : "length";
}

json evidence_json(const Answer& answer) {
  json spans = json::array();
  for (const EvidenceSpan& span : answer.evidence) {
    spans.push_back(
        {{"input", span.input}, {"start", span.start}, {"end", span.end}, {"share", span.share}});
  }
  return spans;
}

json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details",
           {{"cached_tokens", usage.cached_tokens}, {"visual_tokens", usage.visual_tokens}}}};
}

json report_json(const Told& told) {
  json inputs = json::array();
  for (const InputInfo& input : told.inputs) {
    inputs.push_back({{"kind", input.kind},
                      {"width", input.width},
                      {"height", input.height},
                      {"frames", input.times.size()},
                      {"from", input.times.empty() ? 0 : input.times.front()},
                      {"until", input.times.empty() ? 0 : input.times.back()},
                      {"tokens", input.tokens}});
  }
  const Timings& t = told.answer.timings;
  return {{"inputs", inputs},
          {"timings",
           {{"read_video", told.read_seconds},
            {"first_token", t.first_token + told.read_seconds},
            {"generate", t.generate},
            {"total", t.total + told.read_seconds}}},
          {"warnings", told.answer.warnings}};
}

namespace {

json score_json(const TokenScore& score, const Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.bytes_of(score.token);
  json numbers = json::array();
  for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
  const int32_t id = score.token;
  return {{"token", tokenizer.decode({&id, 1})},
          {"logprob", score.log_probability},
          {"bytes", numbers}};
}

}  // namespace

json scores_json(const std::vector<TokenScores>& scores, const Tokenizer& tokenizer) {
  json content = json::array();
  for (const TokenScores& token : scores) {
    json entry = score_json(token.chosen, tokenizer);
    entry["top_logprobs"] = json::array();
    for (const TokenScore& best : token.best) {
      entry["top_logprobs"].push_back(score_json(best, tokenizer));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", content}, {"refusal", nullptr}};
}

json chat_completion(const AnswerHead& head, const json& choices, const Usage& usage,
                     const json& report) {
  return {{"id", head.id},       {"object", "chat.completion"}, {"created", head.created},
          {"model", head.model}, {"choices", choices},          {"usage", usage_json(usage)},
          {"kinora", report}};
}

json chat_choice(int64_t index, const Told& told, const json& scores) {
  return {{"index", index},
          {"message", {{"role", "assistant"}, {"content", told.answer.text}, {"refusal", nullptr}}},
          {"logprobs", scores},
          {"finish_reason", finish_reason(told.answer)},
          {"evidence", evidence_json(told.answer)}};
}

json chat_chunk(const AnswerHead& head, int64_t index, json delta, const json& scores,
                const json& finish) {
  return {{"id", head.id},
          {"object", "chat.completion.chunk"},
          {"created", head.created},
          {"model", head.model},
          {"choices",
           {{{"index", index},
             {"delta", std::move(delta)},
             {"logprobs", scores},
             {"finish_reason", finish}}}}};
}

std::string event(const json& data) { return "data: " + dump(data) + "\n\n"; }

std::string event(const std::string& name, const json& data) {
  return "event: " + name + "\ndata: " + dump(data) + "\n\n";
}

}  // namespace kinora::server
