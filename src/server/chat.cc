// /v1/chat/completions: one question, one or several answers, whole or as they are made.
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <random>
#include <thread>

#include "model/model.h"
#include "server/answer_json.h"
#include "server/api_error.h"
#include "server/fields.h"
#include "server/service.h"
#include "server/stream_reply.h"

namespace kinora::server {
namespace {

using nlohmann::json;

// Tokens' scores, written by whichever thread makes the tokens.
class ScoreBox {
 public:
  void add(const TokenScores& scores) {
    const std::lock_guard lock(mutex_);
    fresh_.push_back(scores);
  }
  std::vector<TokenScores> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(fresh_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<TokenScores> fresh_;
};

}  // namespace

void Service::check_model(const std::string& name) const {
  const size_t slash = options_.model.rfind('/');
  const bool known = name.empty() || name == options_.model ||
                     (slash != std::string::npos && name == options_.model.substr(slash + 1));
  if (known) return;
  throw ApiError(
      404, "model_not_found",
      fmt::format("the model '{}' is not here; this server has {}", name, options_.model), "model");
}

MediaPtr Service::known_media(const std::string& name) {
  MediaPtr media = media_.find(name);
  return media != nullptr ? media : videos_.media(name);
}

bool Service::find_special(const std::string& name, const AnswerWish& wish, Question& question) {
  const bool stream = name.starts_with("stream-"), memory = name.starts_with("memory-");
  if (!stream && !memory) return false;
  if (wish.look != LookWish()) {
    throw bad_request("mm_processor_kwargs",
                      stream ? "how a stream is looked at is said when it is started"
                             : "a memory was looked at already, when it was saved");
  }
  Look look;
  if (stream) question.stream = streams_.find(name).stream;
  if (memory) {
    look.media = memories_.media(name);
    // What was read began with this.
    const std::string system = memories_.find(name).file.system;
    if (!system.empty() && question.turns.front().role != "system") {
      question.turns.insert(question.turns.begin(), {"system", {{Modality::text, system}}});
    }
  }
  question.looks.push_back(std::move(look));
  return true;
}

Question Service::question_of(const AnswerWish& wish, const CancelToken& cancel) {
  check_model(wish.model);
  Question question;
  question.turns = wish.turns;
  question.evidence = wish.evidence;
  for (const MediaPart& part : wish.media) {
    MediaPtr media;
    if (find_special(part.url.empty() ? part.uuid : part.url, wish, question)) continue;
    if (part.url.starts_with("video-")) {  // an id, for clients that can only send addresses
      media = known_media(part.url);
    }
    if (media == nullptr && part.url.empty() && part.base64.empty()) {
      media = known_media(part.uuid);
      if (media == nullptr) {
        throw ApiError(
            404, "media_not_found",
            fmt::format("{}: '{}' is not known (any more); send it again", part.param, part.uuid),
            part.param);
      }
    } else if (media == nullptr) {
      media = part.base64.empty() ? media_.open(part.url, part.param, cancel)
                                  : media_.open_base64(part.base64, part.param);
      media_.remember(part.uuid, media);
    }
    std::optional<int64_t> frames;
    if (media->frames > 0) frames = media->frames;
    question.looks.push_back({media,
                              part.video ? input_options(wish.look, frames)
                                         : InputOptions{.min_pixels = wish.look.min_pixels,
                                                        .max_pixels = wish.look.max_pixels},
                              frames ? first_time(wish.look) : 0});
  }
  const GenerationDefaults& defaults = EngineAccess::state(engine_)->model->info().generation;
  GenerateOptions& generate = question.generate;
  generate.max_tokens =
      wish.max_tokens.value_or(std::min(options_.default_tokens, options_.max_tokens));
  if (generate.max_tokens > options_.max_tokens) {
    throw bad_request("max_completion_tokens",
                      fmt::format("{} is more than the {} that this server allows",
                                  generate.max_tokens, options_.max_tokens));
  }
  generate.sampling.temperature = wish.temperature.value_or(defaults.temperature);
  generate.sampling.top_k = wish.top_k.value_or(defaults.top_k);
  generate.sampling.top_p = wish.top_p.value_or(defaults.top_p);
  generate.sampling.repetition_penalty =
      wish.repetition_penalty.value_or(defaults.repetition_penalty);
  generate.sampling.min_p = wish.min_p;
  generate.sampling.seed =
      wish.seed ? *wish.seed : (uint64_t{std::random_device()()} << 32 | std::random_device()());
  generate.stop = wish.stop;
  generate.ignore_stop_tokens = wish.ignore_end;
  generate.cancel = cancel;
  return question;
}

Told Service::tell(const Question& question, const OnPiece& on_piece,
                   const OnProgress& on_progress) {
  Told told = question.stream != nullptr ? question.stream->ask(question, on_piece)
                                         : shelf_.ask(question, on_piece, on_progress);
  const auto begin_of = [&](size_t input) {
    return input < question.looks.size() ? question.looks[input].begin : 0;
  };
  for (EvidenceSpan& span : told.answer.evidence) {
    const double begin = begin_of(span.input);
    span.start += begin;
    span.end += begin;
  }
  for (size_t i = 0; i < told.inputs.size(); ++i) {
    for (double& time : told.inputs[i].times) time += begin_of(i);
  }
  const Timings& t = told.answer.timings;
  const auto tokens = static_cast<double>(told.answer.ids.size());
  metrics_.observe("kinora_first_token_seconds", t.first_token + told.read_seconds,
                   {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100});
  if (t.generate > 0) {
    metrics_.observe("kinora_tokens_per_second", tokens / t.generate,
                     {1, 3, 10, 30, 100, 300, 1000});
  }
  metrics_.count("kinora_prompt_tokens_total", "", static_cast<double>(told.prompt_tokens));
  metrics_.count("kinora_cached_tokens_total", "", static_cast<double>(told.cached_tokens));
  metrics_.count("kinora_completion_tokens_total", "", tokens);
  metrics_.count("kinora_decoded_frames_total", "", static_cast<double>(told.frames_read));
  metrics_.count("kinora_decode_seconds_total", "", told.decode_seconds);
  metrics_.count("kinora_rows_wanted_bytes_total", "", static_cast<double>(told.fetched.wanted));
  metrics_.count("kinora_rows_late_bytes_total", "", static_cast<double>(told.fetched.late));
  if (told.answer.draft && told.answer.draft->drafted > 0) {
    const auto passes = static_cast<double>(told.answer.draft->passes);
    if (passes > 0) {
      metrics_.observe("kinora_accepted_length", tokens / passes, {1, 1.5, 2, 3, 4, 6, 8, 16});
    }
    metrics_.count("kinora_draft_passes_total", "", passes);
    metrics_.count("kinora_draft_tokens_total", "", tokens);
  }
  return told;
}

void Service::chat(const HttpRequest& request, const Reply& reply) {
  const AnswerWish wish = read_chat_request(parse_body(request.body));
  const CancelToken& cancel = reply->gone();
  const Question question = question_of(wish, cancel);
  const AnswerHead head{new_id("chatcmpl"), options_.model, unix_seconds()};
  StreamReply stream(reply);
  const auto progress = [&](std::string_view stage, int64_t done, int64_t total) {
    if (wish.stream) stream.progress(stage, done, total);
  };

  std::vector<Told> told(static_cast<size_t>(wish.choices));
  std::vector<json> scores(told.size());
  std::vector<std::exception_ptr> failures(told.size());
  const auto answer = [&](size_t index) {
    try {
      ScoreBox box;
      Question own = question;
      own.generate.sampling.seed += index;
      if (wish.logprobs) {
        own.generate.on_scores = [&box](const TokenScores& score) { box.add(score); };
        own.generate.best_scores = wish.top_logprobs;
      }
      const auto number = static_cast<int64_t>(index);
      bool first = true;
      const OnPiece piece = [&](std::string_view text) {
        if (std::exchange(first, false)) {
          stream.send(
              chat_chunk(head, number, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr));
        }
        stream.send(chat_chunk(head, number, {{"content", text}},
                               wish.logprobs ? scores_json(box.take(), tokenizer()) : json(),
                               nullptr));
      };
      told[index] = tell(own, wish.stream ? piece : nullptr, progress);
      if (wish.logprobs) scores[index] = scores_json(box.take(), tokenizer());
      if (!wish.stream) return;
      if (first) piece("");
      json end = chat_chunk(
          head, number, json::object(),
          scores[index].is_null() || scores[index]["content"].empty() ? json() : scores[index],
          finish_reason(told[index].answer));
      end["choices"][0]["evidence"] = evidence_json(told[index].answer);
      stream.send(end);
    } catch (...) {
      failures[index] = std::current_exception();
      cancel.cancel();  // the others are of no use any more
    }
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < told.size(); ++i) others.emplace_back(answer, i);
  answer(0);
  for (std::thread& other : others) other.join();
  // The first failure has cancelled the others.
  std::exception_ptr cause;
  for (const std::exception_ptr& failure : failures) {
    if (!failure) continue;
    try {
      std::rethrow_exception(failure);
    } catch (const Error& error) {
      if (!cause || error.kind() != ErrorKind::cancelled) cause = failure;
    } catch (...) {
      cause = failure;
    }
  }
  if (cause) return stream.fail(cause);

  Usage usage;
  for (size_t i = 0; i < told.size(); ++i) usage.add(told[i], i == 0);
  if (wish.stream) {
    if (wish.stream_usage) {
      stream.send({{"id", head.id},
                   {"object", "chat.completion.chunk"},
                   {"created", head.created},
                   {"model", head.model},
                   {"choices", json::array()},
                   {"usage", usage_json(usage)},
                   {"kinora", report_json(told[0])}});
    }
    return stream.end("data: [DONE]\n\n");
  }
  json choices = json::array();
  for (size_t i = 0; i < told.size(); ++i) {
    choices.push_back(chat_choice(static_cast<int64_t>(i), told[i], scores[i]));
  }
  reply->send(200, {{"Content-Type", "application/json"}},
              dump(chat_completion(head, choices, usage, report_json(told[0]))));
}

}  // namespace kinora::server
