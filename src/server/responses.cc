// /v1/responses: the newer of OpenAI's two APIs, for the same questions. Nothing is stored: what
// was said before comes with the request.
#include <fmt/format.h>

#include "server/answer_json.h"
#include "server/api_error.h"
#include "server/fields.h"
#include "server/service.h"
#include "server/stream_reply.h"

namespace kinora::server {
namespace {

using nlohmann::json;

void read_item(const json& value, const std::string& place, AnswerWish& wish) {
  Fields item(value, place);
  const std::string type = item.text("type").value_or("message");
  if (type != "message") {
    throw ApiError(
        400, "unsupported_value",
        fmt::format("{}: items of type '{}' are not read; messages are", item.path("type"), type),
        item.path("type"));
  }
  std::string role = item.required_text("role");
  if (role == "developer") role = "system";
  if (role != "system" && role != "user" && role != "assistant") {
    throw ApiError(400, "unsupported_value",
                   fmt::format("{}: the role '{}' is not known", item.path("role"), role),
                   item.path("role"));
  }
  const json* content = item.any("content");
  if (content == nullptr) throw bad_request(item.path("content"), "is missing");
  Turn turn{role, {}};
  const size_t before = wish.media.size();
  read_content(*content, item.path("content"), turn, wish.media);
  if (role != "user" && wish.media.size() > before) {
    throw bad_request(item.path("content"), "only users show videos and pictures");
  }
  item.text("id");  // of an answer that comes back
  item.text("status");
  item.text("phase");
  item.done();
  wish.turns.push_back(std::move(turn));
}

AnswerWish read_responses_request(const json& json_body) {
  Fields body(json_body, "");
  AnswerWish wish;
  wish.model = body.text("model").value_or("");
  if (const auto instructions = body.text("instructions")) {
    wish.turns.push_back({"system", {{Modality::text, *instructions}}});
  }
  const json* input = body.any("input");
  if (input == nullptr) throw bad_request("input", "is missing");
  if (input->is_string()) {
    wish.turns.push_back({"user", {{Modality::text, input->get<std::string>()}}});
  } else if (input->is_array() && !input->empty()) {
    for (size_t i = 0; i < input->size(); ++i) {
      read_item((*input)[i], fmt::format("input[{}]", i), wish);
    }
  } else {
    throw ApiError(400, "invalid_type", "input: must be a string or a list of messages", "input");
  }
  if (wish.turns.back().role != "user") {
    throw bad_request("input", "the last message must be the user's");
  }
  wish.look = read_look(body);
  wish.max_tokens = body.integer("max_output_tokens", 1, 1 << 20);
  wish.temperature = body.number("temperature", 0, 2);
  wish.top_p = body.number("top_p", 0, 1);
  wish.stream = body.flag("stream").value_or(false);
  wish.evidence = body.flag("evidence").value_or(true);
  if (const auto seed = body.integer("seed", INT64_MIN / 2, INT64_MAX / 2)) {
    wish.seed = static_cast<uint64_t>(*seed);
  }
  // Known to OpenAI's API; nothing else than their standing values can be honoured here.
  body.only("store", false);
  body.only("background", false);
  body.only("truncation", "disabled");
  body.only("tools", json::array());
  body.only("tool_choice", "none");
  body.only("text", {{"format", {{"type", "text"}}}});
  body.only("include", json::array());
  body.only("service_tier", "auto");
  body.text("user");
  body.text("safety_identifier");
  body.object("metadata");
  body.done();
  return wish;
}

struct ResponseIds {
  std::string response = new_id("resp");
  std::string message = new_id("msg");
  int64_t created = unix_seconds();
};

json message_item(const ResponseIds& ids, const json& content, const char* status) {
  return {{"id", ids.message},
          {"type", "message"},
          {"status", status},
          {"role", "assistant"},
          {"content", content}};
}

json text_part(const std::string& text) {
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", json::array()},
          {"logprobs", json::array()}};
}

json response_json(const ResponseIds& ids, const std::string& model, const AnswerWish& wish,
                   const std::string& status, const json& output) {
  return {{"id", ids.response},
          {"object", "response"},
          {"created_at", ids.created},
          {"status", status},
          {"error", nullptr},
          {"incomplete_details", nullptr},
          {"instructions", nullptr},
          {"max_output_tokens", wish.max_tokens ? json(*wish.max_tokens) : json()},
          {"metadata", json::object()},
          {"model", model},
          {"output", output},
          {"parallel_tool_calls", false},
          {"previous_response_id", nullptr},
          {"store", false},
          {"temperature", wish.temperature ? json(*wish.temperature) : json()},
          {"text", {{"format", {{"type", "text"}}}}},
          {"tool_choice", "none"},
          {"tools", json::array()},
          {"top_p", wish.top_p ? json(*wish.top_p) : json()},
          {"truncation", "disabled"},
          {"usage", nullptr}};
}

}  // namespace

void Service::respond(const HttpRequest& request, const Reply& reply) {
  const AnswerWish wish = read_responses_request(parse_body(request.body));
  const Question question = question_of(wish, reply->gone());
  const ResponseIds ids;
  const auto finished = [&](const Told& told) {
    const bool cut = finish_reason(told.answer) == "length";
    const char* status = cut ? "incomplete" : "completed";
    json response = response_json(
        ids, options_.model, wish, status,
        json::array({message_item(ids, json::array({text_part(told.answer.text)}), status)}));
    if (cut) response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    const auto answered = std::ssize(told.answer.ids);
    response["usage"] = {
        {"input_tokens", told.prompt_tokens},
        {"input_tokens_details",
         {{"cached_tokens", told.cached_tokens}, {"visual_tokens", told.visual_tokens}}},
        {"output_tokens", answered},
        {"output_tokens_details", {{"reasoning_tokens", 0}}},
        {"total_tokens", told.prompt_tokens + answered}};
    response["kinora"] = report_json(told);
    response["evidence"] = evidence_json(told.answer);
    return response;
  };
  if (!wish.stream) {
    const Told told = tell(question, nullptr, nullptr);
    return reply->send(200, {{"Content-Type", "application/json"}}, dump(finished(told)));
  }

  StreamReply stream(reply);
  int64_t number = 0;
  const auto send = [&](const std::string& name, json data) {
    data["type"] = name;
    data["sequence_number"] = number++;
    stream.send(name, data);
  };
  const json place = {{"item_id", ids.message}, {"output_index", 0}, {"content_index", 0}};
  const auto at_place = [&](json more) {
    more.update(place);
    return more;
  };
  bool begun = false;
  const auto begin = [&] {
    if (std::exchange(begun, true)) return;
    const json response = response_json(ids, options_.model, wish, "in_progress", json::array());
    send("response.created", {{"response", response}});
    send("response.in_progress", {{"response", response}});
    send("response.output_item.added",
         {{"output_index", 0}, {"item", message_item(ids, json::array(), "in_progress")}});
    send("response.content_part.added", at_place({{"part", text_part("")}}));
  };
  try {
    const Told told = tell(
        question,
        [&](std::string_view piece) {
          begin();
          send("response.output_text.delta",
               at_place({{"delta", piece}, {"logprobs", json::array()}}));
        },
        [&](std::string_view stage, int64_t done, int64_t total) {
          stream.progress(stage, done, total);
        });
    begin();
    const json response = finished(told);
    const std::string status = response["status"];
    send("response.output_text.done",
         at_place({{"text", told.answer.text}, {"logprobs", json::array()}}));
    send("response.content_part.done", at_place({{"part", text_part(told.answer.text)}}));
    send("response.output_item.done", {{"output_index", 0}, {"item", response["output"][0]}});
    send("response." + status, {{"response", response}});
  } catch (...) {
    return stream.fail(std::current_exception());
  }
  stream.end();
}

}  // namespace kinora::server
