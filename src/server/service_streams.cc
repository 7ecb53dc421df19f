// /v1/streams: sources that go on while they are asked about.
#include <fmt/format.h>

#include <algorithm>

#include "server/api_error.h"
#include "server/fields.h"
#include "server/live/pipes.h"
#include "server/service.h"

namespace kinora::server {
namespace {

using nlohmann::json;

const Headers json_type{{"Content-Type", "application/json"}};
constexpr double opening_seconds = 15;  // that starting waits for a source to answer

// The part of the path behind /v1/streams/.
std::string id_of(const HttpRequest& request) {
  const std::string rest = request.path.substr(std::string_view("/v1/streams/").size());
  return rest.substr(0, rest.find('/'));
}

json stream_json(const WatchedStream& watched) {
  const StreamStatus status = watched.stream->status();
  return {{"id", watched.id},
          {"object", "stream"},
          {"kind", watched.stream->source().kind},
          {"name", watched.stream->source().name},
          {"created_at", watched.created},
          {"state", status.state},
          {"frames", status.frames},
          {"dropped", status.dropped},
          {"tokens", status.tokens},
          {"until", status.until},
          {"bytes", status.bytes.total()},
          {"error", status.error.empty() ? json() : json(status.error)}};
}

}  // namespace

StreamSource Service::stream_source(const std::string& url, std::optional<double> speed,
                                    const CancelToken& cancel) {
  StreamSource source;
  source.name = url;
  const auto& known = options_.stream_from;
  if (std::find(known.begin(), known.end(), url) != known.end()) {
    source.kind = "address";
    source.source = url;
    source.drops = true;
    source.comes_back = !url.starts_with("http");
  } else if (url.starts_with("http://") || url.starts_with("https://")) {
    if (fetcher_ == nullptr) {
      throw ApiError(403, "media_not_allowed",
                     "url: this server does not fetch from addresses; push the frames", "url");
    }
    source.kind = "address";
    fetch_into(source, fetcher_, url);
  } else if (url.find("://") != std::string::npos && !url.starts_with("file://")) {
    throw ApiError(403, "media_not_allowed",
                   "url: this server watches http(s) addresses and those that it was started for",
                   "url");
  } else {
    MediaPtr media = known_media(url);
    if (media == nullptr) media = media_.open(url, "url", cancel);
    source.kind = "file";
    source.name = media->name;
    source.source = media->source;
    source.speed = speed.value_or(1);
    source.drops = true;
    source.keep = std::make_shared<MediaPtr>(media);
  }
  if (speed && source.kind != "file") {
    throw bad_request("speed", "is for files, which are played as if they were filmed now");
  }
  return source;
}

void Service::start_stream(const HttpRequest& request, const Reply& reply) {
  const json body = request.body.empty() ? json::object() : parse_body(request.body);
  Fields fields(body, "");
  const auto url = fields.text("url");
  const auto name = fields.text("name");
  const auto system = fields.text("system");
  const auto speed = fields.number("speed", 0.01, 1000);
  const LookWish look = read_look(fields);
  fields.done();
  if (look.frames) {
    throw bad_request("mm_processor_kwargs.num_frames",
                      "nobody knows how long a stream is: choose frames by fps");
  }
  if (name && name->size() > 255) throw bad_request("name", "is longer than 255 bytes");
  const InputOptions input = input_options(look, std::nullopt);
  streams_.check_room();

  WatchedStream watched;
  StreamSource source;
  if (url) {
    source = stream_source(*url, speed, reply->gone());
  } else {
    if (speed) throw bad_request("speed", "is for files, which are played again");
    source.kind = "push";
    source.name = "pushed frames";
    watched.feed = push_into(source);
  }
  if (name) source.name = *name;
  const int64_t share = options_.max_row_bytes / (2 * std::max<int64_t>(1, options_.max_streams));
  source.share = shelf_.hold(share, reply->gone());
  SessionOptions session = session_;
  session.progress = nullptr;
  session.system = system.value_or(session.system);
  session.frames_per_group = 2;
  // A stream has no end that memory could be planned for: old rows wait in a file.
  const int64_t rows =
      std::max<int64_t>(16384, share / 2 / std::max<int64_t>(1, shelf_.token_bytes()));
  session.memory = fmt::format("mosaic:window=8192,host={}", rows);
  watched.id = new_id("stream");
  watched.created = unix_seconds();
  const bool pushed = source.kind == "push";
  watched.stream = std::make_shared<LiveStream>(engine_, session, std::move(source), input, share);
  if (!pushed) watched.stream->wait_until_open(opening_seconds, reply->gone());
  streams_.add(watched);
  reply->send(201, json_type, dump(stream_json(watched)));
}

void Service::list_streams(const HttpRequest&, const Reply& reply) {
  json list = json::array();
  for (const WatchedStream& watched : streams_.list()) list.push_back(stream_json(watched));
  reply->send(200, json_type, dump({{"object", "list"}, {"data", list}}));
}

void Service::show_stream(const HttpRequest& request, const Reply& reply) {
  reply->send(200, json_type, dump(stream_json(streams_.find(id_of(request)))));
}

void Service::stop_stream(const HttpRequest& request, const Reply& reply) {
  const std::string id = id_of(request);
  streams_.remove(id);
  reply->send(200, json_type, dump({{"id", id}, {"object", "stream.deleted"}, {"deleted", true}}));
}

void Service::stream_picture(const HttpRequest& request, const Reply& reply) {
  std::string picture = streams_.find(id_of(request)).stream->picture();
  if (picture.empty()) throw ApiError(409, "stream_empty", "nothing has been seen of it yet");
  reply->send(200, {{"Content-Type", "image/png"}, {"Cache-Control", "no-store"}},
              std::move(picture));
}

void Service::push_frames(const HttpRequest& request, const Reply& reply) {
  const WatchedStream watched = streams_.find(id_of(request));
  if (watched.feed == nullptr) {
    throw ApiError(409, "stream_not_free", "this stream takes its frames from elsewhere");
  }
  std::optional<WebSocketEvents> events = PushFeed::take(watched.feed);
  if (!events) {
    throw ApiError(409, "stream_not_free", "somebody pushes frames already, or did");
  }
  reply->upgrade(options_.max_message_bytes, std::move(*events));
}

}  // namespace kinora::server
