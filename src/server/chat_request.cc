#include "server/chat_request.h"

#include <fmt/format.h>

#include "server/api_error.h"
#include "server/fields.h"

namespace kinora::server {
namespace {

using nlohmann::json;

constexpr int64_t most_messages = 4096, most_media = 64, most_stops = 16, most_choices = 16;

MediaPart read_media(Fields& part, const json& value, const char* field, bool video,
                     const std::optional<std::string>& file_id) {
  MediaPart media;
  media.video = video;
  media.param = part.path(field);
  media.uuid = part.text("uuid").value_or("");
  if (file_id) media.uuid = *file_id;
  if (value.is_string()) {  // some clients leave the object out
    media.url = value.get<std::string>();
    media.param = part.path(field);
  } else if (!value.is_null()) {
    Fields inner(value, part.path(field));
    media.param = inner.path("url");
    media.url = inner.text("url").value_or("");
    if (video) {
      media.base64 = inner.text("data").value_or("");
      if (!media.base64.empty()) media.param = inner.path("data");
      if (const auto id = inner.text("file_id")) media.uuid = *id;
      inner.any("format");  // the bytes say it themselves
    } else {
      inner.only("detail", "auto");
    }
    inner.done();
  }
  if (!media.url.empty() && !media.base64.empty()) {
    throw bad_request(media.param, "give a url or data, not both");
  }
  if (media.url.empty() && media.base64.empty() && media.uuid.empty()) {
    throw bad_request(media.param, "names nothing: give a url, data or a known uuid");
  }
  return media;
}

void read_part(const json& value, const std::string& place, Turn& turn,
               std::vector<MediaPart>& media) {
  Fields part(value, place);
  const std::string type = part.required_text("type");
  if (type == "text" || type == "input_text" || type == "output_text") {
    turn.parts.push_back({Modality::text, part.required_text("text")});
    part.any("annotations");  // of an answer that comes back
    part.any("logprobs");
  } else if (type == "image_url" || type == "video_url" || type == "input_video" ||
             type == "input_image") {
    const bool video = type == "video_url" || type == "input_video";
    const char* field = type == "input_image" ? "image_url" : type.c_str();
    if (type == "input_image") part.only("detail", "auto");
    static const json nothing;
    const json* inner = part.any(field);
    // OpenAI writes it beside the address.
    const auto id = type.starts_with("input_") ? part.text("file_id") : std::nullopt;
    media.push_back(read_media(part, inner != nullptr ? *inner : nothing, field, video, id));
    turn.parts.push_back({video ? Modality::video : Modality::image, ""});
    if (std::ssize(media) > most_media) {
      throw bad_request(place, fmt::format("more than {} videos and pictures", most_media));
    }
  } else {
    throw ApiError(
        400, "unsupported_value",
        fmt::format("{}: parts of type '{}' are not read; text, image_url, video_url and "
                    "input_video are",
                    part.path("type"), type),
        part.path("type"));
  }
  part.done();
}

std::vector<std::string> read_stop(Fields& body) {
  std::vector<std::string> stops;
  const json* stop = body.any("stop");
  if (stop == nullptr) return stops;
  const auto add = [&](const json& one) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty()) {
      throw bad_request("stop", "must be a string that is not empty, or a list of such");
    }
    stops.push_back(one.get<std::string>());
  };
  if (stop->is_array()) {
    for (const json& one : *stop) add(one);
  } else {
    add(*stop);
  }
  if (std::ssize(stops) > most_stops) {
    throw bad_request("stop", fmt::format("more than {} strings", most_stops));
  }
  return stops;
}

void read_messages(Fields& body, AnswerWish& wish) {
  const json* messages = body.array("messages");
  if (messages == nullptr || messages->empty()) throw bad_request("messages", "is missing");
  if (std::ssize(*messages) > most_messages) {
    throw bad_request("messages", fmt::format("more than {} messages", most_messages));
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    Fields message((*messages)[i], fmt::format("messages[{}]", i));
    std::string role = message.required_text("role");
    if (role == "developer") role = "system";
    if (role != "system" && role != "user" && role != "assistant") {
      throw ApiError(400, "unsupported_value",
                     fmt::format("{}: the role '{}' is not known; system, developer, user and "
                                 "assistant are",
                                 message.path("role"), role),
                     message.path("role"));
    }
    const json* content = message.any("content");
    if (content == nullptr) throw bad_request(message.path("content"), "is missing");
    Turn turn{role, {}};
    const size_t before = wish.media.size();
    read_content(*content, message.path("content"), turn, wish.media);
    if (role != "user" && wish.media.size() > before) {
      throw bad_request(message.path("content"), "only users show videos and pictures");
    }
    message.done();
    wish.turns.push_back(std::move(turn));
  }
  if (wish.turns.back().role != "user") {
    throw bad_request(fmt::format("messages[{}].role", messages->size() - 1),
                      "the last message must be the user's");
  }
}

}  // namespace

void read_content(const json& content, const std::string& place, Turn& turn,
                  std::vector<MediaPart>& media) {
  if (content.is_string()) {
    turn.parts.push_back({Modality::text, content.get<std::string>()});
    return;
  }
  if (!content.is_array() || content.empty()) {
    throw ApiError(400, "invalid_type", place + ": must be a string or a list of parts", place);
  }
  for (size_t i = 0; i < content.size(); ++i) {
    read_part(content[i], fmt::format("{}[{}]", place, i), turn, media);
  }
}

LookWish read_look(Fields& body) {
  constexpr double most_fps = 240;
  constexpr int64_t most_frames = 1 << 20, most_pixels = int64_t{1} << 31;
  LookWish look;
  const auto read_choice = [&](Fields& from) {
    if (const auto fps = from.number("fps", 1e-4, most_fps)) look.fps = fps;
    if (const auto frames = from.integer("num_frames", 1, most_frames)) look.frames = frames;
  };
  if (const json* given = body.object("mm_processor_kwargs")) {
    Fields fields(*given, "mm_processor_kwargs");
    read_choice(fields);
    look.min_pixels = fields.integer("min_pixels", 1, most_pixels).value_or(0);
    look.max_pixels = fields.integer("max_pixels", 1, most_pixels).value_or(0);
    look.sample_frames = fields.flag("do_sample_frames").value_or(false);
    fields.done();
  }
  if (const json* given = body.object("media_io_kwargs")) {
    Fields kinds(*given, "media_io_kwargs");
    if (const json* video = kinds.object("video")) {
      Fields fields(*video, "media_io_kwargs.video");
      look.frame_rate = fields.number("fps", 1e-4, most_fps);
      if (const auto frames = fields.integer("num_frames", 1, most_frames)) look.frames = frames;
      look.duration = fields.number("duration", 0, 1e9);
      if (const auto sample = fields.flag("do_sample_frames")) look.sample_frames = *sample;
      fields.integer("total_num_frames", 1, INT64_MAX / 2);  // follows from the others
      if (const json* indices = fields.array("frames_indices")) {
        for (const json& index : *indices) {
          if (!index.is_number_integer() || index < 0) {
            throw bad_request("media_io_kwargs.video.frames_indices", "must be whole numbers");
          }
          look.frame_indices.push_back(index.get<int64_t>());
        }
      }
      fields.done();
    }
    kinds.done();
  }
  if (look.fps && look.frames) {
    throw bad_request("mm_processor_kwargs.num_frames",
                      "choose frames by fps or by num_frames, not by both");
  }
  return look;
}

InputOptions input_options(const LookWish& look, std::optional<int64_t> frames) {
  InputOptions options;
  options.min_pixels = look.min_pixels;
  options.max_pixels = look.max_pixels;
  const std::string place = "media_io_kwargs.video.";
  if (!frames) {
    if (!look.frame_indices.empty()) {
      throw bad_request(place + "frames_indices", "is for ready frames (data:video/jpeg)");
    }
    if (look.duration) {
      throw bad_request(place + "duration", "is for ready frames (data:video/jpeg)");
    }
    const auto fps = look.fps ? look.fps : look.frame_rate;
    if (fps && look.frames) {
      throw bad_request(place + "num_frames", "choose frames by fps or by num_frames, not by both");
    }
    if (fps) options.frames = FrameChoice::rate(*fps);
    if (look.frames) options.frames = FrameChoice::evenly(*look.frames);
    return options;
  }
  // Ready frames: where they stood in their video, which must be at even distances.
  double rate = look.frame_rate.value_or(1);
  if (!look.frame_indices.empty()) {
    const auto& indices = look.frame_indices;
    if (std::ssize(indices) != *frames) {
      throw bad_request(place + "frames_indices",
                        fmt::format("has {} numbers for {} frames", indices.size(), *frames));
    }
    const int64_t step = indices.size() > 1 ? indices[1] - indices[0] : 1;
    for (size_t i = 1; i < indices.size(); ++i) {
      const int64_t distance = indices[i] - indices[i - 1];
      // Spreading evenly rounds by one.
      if (step < 1 || distance < step - 1 || distance > step + 1 || distance < 1) {
        throw ApiError(400, "unsupported_value",
                       place + "frames_indices: only frames at even distances are read",
                       place + "frames_indices");
      }
    }
    const auto span = static_cast<double>(indices.back() - indices.front());
    if (indices.size() > 1) rate *= static_cast<double>(*frames - 1) / span;
  } else if (look.duration && *look.duration > 0) {
    rate = static_cast<double>(*frames) / *look.duration;
  }
  options.folder_fps = rate;
  options.frames = FrameChoice::all();
  if (look.sample_frames) {
    options.frames = look.fps      ? FrameChoice::rate(*look.fps)
                     : look.frames ? FrameChoice::evenly(*look.frames)
                                   : FrameChoice{};
  } else if (look.fps || look.frames) {
    throw bad_request(place + "do_sample_frames",
                      "must be true where ready frames are chosen among by fps or num_frames");
  }
  return options;
}

double first_time(const LookWish& look) {
  if (look.frame_indices.empty()) return 0;
  return static_cast<double>(look.frame_indices.front()) / look.frame_rate.value_or(1);
}

AnswerWish read_chat_request(const json& json_body) {
  Fields body(json_body, "");
  AnswerWish wish;
  wish.model = body.text("model").value_or("");
  read_messages(body, wish);
  wish.look = read_look(body);
  constexpr int64_t most_tokens = 1 << 20;
  const auto old_limit = body.integer("max_tokens", 1, most_tokens);
  const auto new_limit = body.integer("max_completion_tokens", 1, most_tokens);
  if (old_limit && new_limit && *old_limit != *new_limit) {
    throw bad_request("max_tokens", "differs from max_completion_tokens; give one of them");
  }
  wish.max_tokens = new_limit ? new_limit : old_limit;
  wish.temperature = body.number("temperature", 0, 2);
  wish.top_p = body.number("top_p", 0, 1);
  wish.top_k = body.integer("top_k", 0, 1 << 20);
  wish.min_p = body.number("min_p", 0, 1).value_or(0);
  wish.repetition_penalty = body.number("repetition_penalty", 0.01, 10);
  if (const auto seed = body.integer("seed", INT64_MIN / 2, INT64_MAX / 2)) {
    wish.seed = static_cast<uint64_t>(*seed);
  }
  wish.stop = read_stop(body);
  wish.choices = body.integer("n", 1, most_choices).value_or(1);
  wish.stream = body.flag("stream").value_or(false);
  if (const json* options = body.object("stream_options")) {
    if (!wish.stream) throw bad_request("stream_options", "is for requests with stream: true");
    Fields fields(*options, "stream_options");
    wish.stream_usage = fields.flag("include_usage").value_or(false);
    fields.only("include_obfuscation", false);
    fields.done();
  }
  wish.logprobs = body.flag("logprobs").value_or(false);
  const auto top = body.integer("top_logprobs", 0, 20);
  if (top && !wish.logprobs) throw bad_request("top_logprobs", "needs logprobs: true");
  wish.top_logprobs = top.value_or(0);
  wish.evidence = body.flag("evidence").value_or(true);
  wish.ignore_end = body.flag("ignore_eos").value_or(false);
  // Known to OpenAI's API; nothing else than their standing values can be honoured here.
  body.only("presence_penalty", 0);
  body.only("frequency_penalty", 0);
  body.only("logit_bias", json::object());
  body.only("response_format", {{"type", "text"}});
  body.only("tools", json::array());
  body.only("tool_choice", "none");
  body.only("modalities", {"text"});
  body.only("store", false);
  body.only("service_tier", "auto");
  body.text("user");  // labels that change nothing about the answer
  body.text("safety_identifier");
  body.object("metadata");
  body.done();
  return wish;
}

}  // namespace kinora::server
