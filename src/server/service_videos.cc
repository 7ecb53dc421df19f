// /v1/videos: videos that stay, with what a page needs to show them.
#include <fmt/format.h>

#include <charconv>
#include <filesystem>

#include "base/file.h"
#include "server/answer_json.h"
#include "server/api_error.h"
#include "server/fields.h"
#include "server/service.h"
#include "server/stream_reply.h"

namespace kinora::server {
namespace {

using nlohmann::json;

const Headers json_type{{"Content-Type", "application/json"}};

// The part of the path behind /v1/videos/.
std::string id_of(const HttpRequest& request) {
  const std::string rest = request.path.substr(std::string_view("/v1/videos/").size());
  return rest.substr(0, rest.find('/'));
}

double number_of(const HttpRequest& request, const char* name, double otherwise, double least,
                 double most) {
  const auto text = request.parameter(name);
  if (!text) return otherwise;
  double value = 0;
  const char* end = text->data() + text->size();
  const auto [after, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || after != end || !(value >= least && value <= most)) {
    throw bad_request(name, fmt::format("must be a number from {} to {}", least, most));
  }
  return value;
}

void refuse_other_parameters(const HttpRequest& request, std::initializer_list<const char*> known) {
  for (const auto& [name, value] : request.query) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw ApiError(400, "unknown_field", name + ": this parameter is not known here", name);
    }
  }
}

// What browsers play, by the container.
std::string content_type(const LibraryVideo& video) {
  const std::string& container = video.container;
  if (video.picture) {
    return container.find("png") != std::string::npos ? "image/png" : "image/jpeg";
  }
  if (container.find("mp4") != std::string::npos) return "video/mp4";
  if (container.find("webm") != std::string::npos) {
    return video.codec == "vp8" || video.codec == "vp9" || video.codec == "av1"
               ? "video/webm"
               : "video/x-matroska";
  }
  return "application/octet-stream";
}

struct Range {
  int64_t begin = 0;
  int64_t end = 0;  // one past
};

// "bytes=0-99", "bytes=100-", "bytes=-100". Nothing for what is to be passed over.
std::optional<Range> parse_range(std::string_view text, int64_t size) {
  constexpr std::string_view unit = "bytes=";
  if (!text.starts_with(unit) || text.find(',') != std::string_view::npos) return std::nullopt;
  text.remove_prefix(unit.size());
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto parse = [](std::string_view digits) {
    int64_t value = -1;
    const auto [after, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && after == digits.data() + digits.size() ? value : -1;
  };
  const std::string_view first = text.substr(0, dash), last = text.substr(dash + 1);
  if (first.empty()) {
    const int64_t count = parse(last);
    if (count < 0) return std::nullopt;
    return Range{std::max<int64_t>(0, size - count), size};
  }
  const int64_t begin = parse(first);
  if (begin < 0) return std::nullopt;
  if (last.empty()) return Range{begin, size};
  const int64_t end = parse(last);
  if (end < begin) return std::nullopt;
  return Range{begin, std::min(size - 1, end) + 1};
}

}  // namespace

void Service::add_video(const HttpRequest& request, const Reply& reply) {
  // The file goes, whatever happens, unless the library takes it.
  const std::shared_ptr<void> guard(nullptr, [&](void*) {
    std::error_code ignored;
    std::filesystem::remove(request.body_file, ignored);
  });
  refuse_other_parameters(request, {"name"});
  const std::string_view type = request.header("content-type");
  if (type.starts_with("multipart/")) {
    throw ApiError(415, "unsupported_media_type",
                   "send the video's bytes as the body itself, not as a form");
  }
  std::string name = request.parameter("name").value_or("video");
  constexpr size_t longest_name = 255;
  if (name.size() > longest_name) throw bad_request("name", "is longer than 255 bytes");
  LibraryVideo video;
  if (type.starts_with("application/json")) {
    const json value = parse_body(real_files().read(request.body_file, options_.max_body_bytes));
    Fields fields(value, "");
    const std::string url = fields.required_text("url");
    if (const auto given = fields.text("name")) name = given->substr(0, longest_name);
    fields.done();
    video = videos_.add_media(*media_.open(url, "url", reply->gone()), name, reply->gone());
  } else {
    if (request.body_bytes == 0) throw bad_request("", "the body is empty: send a video");
    video = videos_.add_file(request.body_file, name, reply->gone());
  }
  reply->send(201, json_type, dump(video_json(video)));
}

void Service::list_videos(const HttpRequest&, const Reply& reply) {
  json list = json::array();
  for (const LibraryVideo& video : videos_.list()) list.push_back(video_json(video));
  reply->send(200, json_type, dump({{"object", "list"}, {"data", list}}));
}

void Service::show_video(const HttpRequest& request, const Reply& reply) {
  reply->send(200, json_type, dump(video_json(videos_.find(id_of(request)))));
}

void Service::delete_video(const HttpRequest& request, const Reply& reply) {
  const std::string id = id_of(request);
  videos_.remove(id);
  shelf_.forget(id.substr(std::min(id.size(), std::string_view("video-").size())));
  reply->send(200, json_type, dump({{"id", id}, {"object", "video.deleted"}, {"deleted", true}}));
}

void Service::video_content(const HttpRequest& request, const Reply& reply) {
  const LibraryVideo video = videos_.find(id_of(request));
  const std::string path = videos_.path_of(video.id);
  Headers headers{{"Content-Type", content_type(video)},
                  {"Accept-Ranges", "bytes"},
                  {"X-Content-Type-Options", "nosniff"},
                  {"Content-Security-Policy", "default-src 'none'; media-src 'self'; sandbox"},
                  {"Cache-Control", "private, max-age=3600"}};
  const auto range = parse_range(request.header("range"), video.bytes);
  if (!range) return reply->send_file(200, headers, path, 0, video.bytes);
  if (range->begin >= range->end) {
    headers.emplace_back("Content-Range", fmt::format("bytes */{}", video.bytes));
    return reply->send(416, headers, "");
  }
  headers.emplace_back("Content-Range",
                       fmt::format("bytes {}-{}/{}", range->begin, range->end - 1, video.bytes));
  reply->send_file(206, headers, path, range->begin, range->end - range->begin);
}

void Service::video_picture(const HttpRequest& request, const Reply& reply) {
  refuse_other_parameters(request, {"time", "side"});
  const double time = number_of(request, "time", 0, 0, 1e9);
  const auto side = static_cast<int64_t>(number_of(request, "side", 160, 16, 1024));
  reply->send(200, {{"Content-Type", "image/png"}, {"Cache-Control", "private, max-age=3600"}},
              videos_.picture(id_of(request), time, side, reply->gone()));
}

void Service::video_scenes(const HttpRequest& request, const Reply& reply) {
  json scenes = json::array();
  for (const Scene& scene : videos_.scenes(id_of(request), reply->gone())) {
    scenes.push_back({{"start", scene.start}, {"end", scene.end}, {"cluster", scene.cluster}});
  }
  reply->send(200, json_type, dump({{"object", "list"}, {"data", scenes}}));
}

void Service::index_video(const HttpRequest& request, const Reply& reply) {
  const LibraryVideo video = videos_.find(id_of(request));
  AnswerWish wish;
  if (!request.body.empty()) {
    const json body = parse_body(request.body);
    Fields fields(body, "");
    if (const auto system = fields.text("system")) {
      wish.turns.push_back({"system", {{Modality::text, *system}}});
    }
    wish.look = read_look(fields);
    fields.done();
  }
  wish.turns.push_back({"user", {{Modality::video, ""}}});
  wish.media.push_back({"id", "", "", video.id, true});
  const Question question = question_of(wish, reply->gone());
  StreamReply stream(reply);
  const auto begin = std::chrono::steady_clock::now();
  try {
    stream.send("progress", {{"stage", "open"}, {"done", 0}, {"total", 0}});
    Throttle throttle;
    shelf_.prepare(question, [&](std::string_view stage, int64_t done, int64_t total) {
      if (!throttle.passes(stage, done, total)) return;
      stream.send("progress", {{"stage", stage}, {"done", done}, {"total", total}});
    });
  } catch (...) {
    return stream.fail(std::current_exception());
  }
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  stream.send("done", {{"id", video.id}, {"seconds", spent.count()}});
  stream.end();
}

}  // namespace kinora::server
