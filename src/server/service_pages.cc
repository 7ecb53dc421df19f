// What is answered at once: whether the server lives, how it does, what model it has.
#include <fmt/format.h>

#include "engine/scheduler.h"
#include "server/api_error.h"
#include "server/page/embedded_files.h"
#include "server/service.h"

namespace kinora::server {
namespace {

const Headers json_type{{"Content-Type", "application/json"}};
const Headers text_type{{"Content-Type", "text/plain; charset=utf-8"}};

std::string page_type(const std::string& name) {
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".json")) return "application/json";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/html; charset=utf-8";
}

}  // namespace

void Service::health(const HttpRequest&, const Reply& reply) {
  reply->send(200, text_type, "ok\n");
}

void Service::readiness(const HttpRequest&, const Reply& reply) {
  if (ready_) return reply->send(200, text_type, "ready\n");
  Headers headers = text_type;
  headers.emplace_back("Retry-After", "10");
  reply->send(503, headers, "draining\n");
}

void Service::page(const HttpRequest& request, const Reply& reply) {
  const std::string prefix = "/page/";
  std::string name = request.path.substr(1);
  if (name.empty()) name = "index.html";
  if (request.path.starts_with(prefix)) name = request.path.substr(prefix.size());
  for (const EmbeddedFile& file : embedded_files()) {
    if (name != file.name) continue;
    reply->send(200,
                {{"Content-Type", page_type(name)},
                 {"Cache-Control", "no-cache"},
                 {"X-Content-Type-Options", "nosniff"},
                 {"Referrer-Policy", "no-referrer"},
                 {"Content-Security-Policy",
                  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
                  "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                  "frame-ancestors 'none'"}},
                std::string(reinterpret_cast<const char*>(file.bytes), file.size));
    return;
  }
  throw ApiError(404, "unknown_url", "there is nothing at " + request.path);
}

void Service::metrics(const HttpRequest&, const Reply& reply) {
  const Shelf::Report shelf = shelf_.report();
  const EngineState& engine = *EngineAccess::state(engine_);
  const Scheduler::Report steps = engine.scheduler->report();
  const bool on_cpu = engine.context.device.is_cpu();
  const auto bytes = static_cast<double>(shelf.bytes);
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  reply->send(200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
              metrics_.text({
                  {"kinora_connections", number(http_->connections())},
                  {"kinora_queue_waiting", number(queue_->waiting())},
                  {"kinora_queue_running", number(queue_->running())},
                  {"kinora_kv_bytes{tier=\"device\"}", on_cpu ? 0 : bytes},
                  {"kinora_kv_bytes{tier=\"host\"}", on_cpu ? bytes : 0},
                  {"kinora_kv_bytes{tier=\"disk\"}", 0},
                  {"kinora_kv_bytes_limit", number(shelf.max_bytes)},
                  {"kinora_videos_in_memory", number(shelf.videos)},
                  {"kinora_conversations_in_memory", number(shelf.talks)},
                  {"kinora_memory_hits", number(shelf.hits)},
                  {"kinora_memory_misses", number(shelf.misses)},
                  {"kinora_prefill_groups", number(steps.prefills)},
                  {"kinora_decode_rounds", number(steps.rounds)},
                  {"kinora_decode_steps", number(steps.steps)},
                  {"kinora_decode_batch_largest", number(steps.largest)},
                  {"kinora_decode_batch_mean",
                   steps.rounds > 0 ? number(steps.steps) / number(steps.rounds) : 0},
              }));
}

nlohmann::json Service::model_json() const {
  const ModelDescription model = engine_.describe();
  return {
      {"id", options_.model},          {"object", "model"},      {"created", 0},
      {"owned_by", "kinora"},          {"family", model.family}, {"parameters", model.parameters},
      {"context", model.max_position}, {"sees", model.sees}};
}

void Service::models(const HttpRequest& request, const Reply& reply) {
  const std::string prefix = "/v1/models/";
  if (!request.path.starts_with(prefix)) {
    const nlohmann::json list = {{"object", "list"}, {"data", {model_json()}}};
    return reply->send(200, json_type, dump(list));
  }
  check_model(request.path.substr(prefix.size()));
  reply->send(200, json_type, dump(model_json()));
}

}  // namespace kinora::server
