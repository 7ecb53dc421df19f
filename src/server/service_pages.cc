// What is answered at once: whether the server lives, how it does, what model it has.
#include <fmt/format.h>

#include "engine/scheduler/scheduler.h"
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
  MemoryBytes tiers = shelf.tiers;
  int64_t stream_frames = 0, dropped = 0;
  const std::vector<WatchedStream> streams = streams_.list();
  for (const WatchedStream& watched : streams) {
    const StreamStatus status = watched.stream->status();
    tiers.device += status.bytes.device;
    tiers.host += status.bytes.host;
    tiers.disk += status.bytes.disk;
    stream_frames += status.frames;
    dropped += status.dropped;
  }
  const Scheduler::Report steps = EngineAccess::state(engine_)->scheduler->report();
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const auto share = [](double part, double all) { return all > 0 ? part / all : 0; };
  const auto hit_rate = [&](double wanted, double late) { return share(wanted - late, wanted); };
  reply->send(
      200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
      metrics_.text({
          {"kinora_connections", number(http_->connections())},
          {"kinora_queue_waiting", number(queue_->waiting())},
          {"kinora_queue_running", number(queue_->running())},
          {"kinora_kv_bytes{tier=\"device\"}", number(tiers.device)},
          {"kinora_kv_bytes{tier=\"host\"}", number(tiers.host)},
          {"kinora_kv_bytes{tier=\"disk\"}", number(tiers.disk)},
          {"kinora_kv_bytes_shared", number(shelf.tiers.shared)},
          {"kinora_kv_bytes_reserved", number(shelf.bytes)},
          {"kinora_kv_bytes_limit", number(shelf.max_bytes)},
          {"kinora_videos_in_memory", number(shelf.videos)},
          {"kinora_conversations_in_memory", number(shelf.talks)},
          {"kinora_streams", number(std::ssize(streams))},
          {"kinora_stream_frames", number(stream_frames)},
          {"kinora_stream_frames_dropped", number(dropped)},
          {"kinora_retrieval_hits_total", number(shelf.hits)},
          {"kinora_retrieval_misses_total", number(shelf.misses)},
          {"kinora_retrieval_hit_rate",
           share(number(shelf.hits), number(shelf.hits + shelf.misses))},
          {"kinora_rows_hit_rate", hit_rate(metrics_.total("kinora_rows_wanted_bytes_total"),
                                            metrics_.total("kinora_rows_late_bytes_total"))},
          {"kinora_prefill_groups_total", number(steps.prefills)},
          {"kinora_decode_rounds_total", number(steps.rounds)},
          {"kinora_decode_steps_total", number(steps.steps)},
          {"kinora_decode_batch_largest", number(steps.largest)},
          {"kinora_decode_batch_mean", share(number(steps.steps), number(steps.rounds))},
          {"kinora_accepted_length_mean", share(metrics_.total("kinora_draft_tokens_total"),
                                                metrics_.total("kinora_draft_passes_total"))},
          {"kinora_video_decode_fps", share(metrics_.total("kinora_decoded_frames_total"),
                                            metrics_.total("kinora_decode_seconds_total"))},
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
