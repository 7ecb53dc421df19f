// /v1/memories: what was read of a video or a stream, saved and asked about again.
#include <filesystem>

#include "engine/saved/saved_about.h"
#include "server/api_error.h"
#include "server/fields.h"
#include "server/service.h"

namespace kinora::server {
namespace {

using nlohmann::json;

const Headers json_type{{"Content-Type", "application/json"}};

// The part of the path behind /v1/memories/.
std::string id_of(const HttpRequest& request) {
  const std::string rest = request.path.substr(std::string_view("/v1/memories/").size());
  return rest.substr(0, rest.find('/'));
}

// Takes over a file that was made elsewhere, if it serves this model.
MemoryFile copy_memory(const EngineState& engine, const Media& media, const std::string& path) {
  MemoryFile file = describe_memory(media.source);
  if (file.model_key != key_of_model(engine)) {
    throw ApiError(400, "invalid_media",
                   media.name + " was made with another model: " + file.model);
  }
  if (file.inputs.size() != 1) {
    throw ApiError(400, "unsupported", media.name + " holds several videos, not one");
  }
  std::error_code error;
  std::filesystem::copy_file(media.source, path, error);
  if (error) throw ApiError(507, "no_space", "the memory cannot be kept: the disk may be full");
  return describe_memory(path);
}

}  // namespace

void Service::save_memory(const HttpRequest& request, const Reply& reply) {
  const json body = parse_body(request.body);
  Fields fields(body, "");
  const auto video = fields.text("video");
  const auto stream = fields.text("stream");
  const auto url = fields.text("url");
  const auto name = fields.text("name");
  const auto system = fields.text("system");
  AnswerWish wish;
  wish.look = read_look(fields);
  fields.done();
  if (int{video.has_value()} + int{stream.has_value()} + int{url.has_value()} != 1) {
    throw bad_request("video", "say what to save: one of video, stream and url");
  }
  if (name && name->size() > 255) throw bad_request("name", "is longer than 255 bytes");
  if (!video && (system || wish.look != LookWish())) {
    throw bad_request(system ? "system" : "mm_processor_kwargs",
                      "is for videos; what was read elsewhere stays as it was read");
  }
  const CancelToken& cancel = reply->gone();
  std::string title;
  std::function<MemoryFile(const std::string&)> write;
  Question question;
  WatchedStream watched;
  MediaPtr media;
  if (video) {
    title = videos_.find(*video).name;
    if (system) wish.turns.push_back({"system", {{Modality::text, *system}}});
    wish.turns.push_back({"user", {{Modality::video, ""}}});
    wish.media.push_back({"video", "", "", *video, true});
    question = question_of(wish, cancel);
    write = [&](const std::string& path) { return shelf_.save(question, path); };
  } else if (stream) {
    watched = streams_.find(*stream);
    title = watched.stream->source().name;
    write = [&](const std::string& path) { return watched.stream->save(path, cancel); };
  } else {
    media = media_.open(*url, "url", cancel);
    if (media->frames > 0 || !is_memory_file(media->source)) {
      throw ApiError(400, "invalid_media", "url: this is not a saved memory", "url");
    }
    title = media->name;
    write = [&](const std::string& path) {
      return copy_memory(*EngineAccess::state(engine_), *media, path);
    };
  }
  const SavedMemory saved = memories_.add(name.value_or(title), write);
  if (options_.on_saved) options_.on_saved(saved.file);
  reply->send(201, json_type, dump(memory_json(saved)));
}

void Service::list_memories(const HttpRequest&, const Reply& reply) {
  json list = json::array();
  for (const SavedMemory& memory : memories_.list()) list.push_back(memory_json(memory));
  reply->send(200, json_type, dump({{"object", "list"}, {"data", list}}));
}

void Service::show_memory(const HttpRequest& request, const Reply& reply) {
  reply->send(200, json_type, dump(memory_json(memories_.find(id_of(request)))));
}

void Service::delete_memory(const HttpRequest& request, const Reply& reply) {
  const std::string id = id_of(request);
  memories_.remove(id);
  shelf_.forget(id);
  reply->send(200, json_type, dump({{"id", id}, {"object", "memory.deleted"}, {"deleted", true}}));
}

void Service::memory_content(const HttpRequest& request, const Reply& reply) {
  const SavedMemory memory = memories_.find(id_of(request));
  reply->send_file(200, {{"Content-Type", "application/octet-stream"}}, memory.file.path, 0,
                   memory.file.bytes);
}

}  // namespace kinora::server
