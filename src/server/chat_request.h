// A request for an answer, read from JSON: what /v1/chat/completions and /v1/responses have in
// common. Media are named here and opened later. Used by service.cc.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/session_state.h"

namespace kinora::server {

// A video or picture as a request names it.
struct MediaPart {
  std::string param;  // the field, for messages
  std::string url;    // or …
  std::string base64;
  std::string uuid;  // names it; alone it must be known already
  bool video = true;
};

// How videos are to be looked at, for all of a request.
struct LookWish {
  std::optional<double> fps;
  std::optional<int64_t> frames;
  int64_t min_pixels = 0;
  int64_t max_pixels = 0;
  // Of ready frames.
  std::optional<double> frame_rate;    // of the video they were taken from
  std::vector<int64_t> frame_indices;  // in it
  std::optional<double> duration;      // of it, seconds
  bool sample_frames = false;          // choose among them as from any video

  bool operator==(const LookWish&) const = default;
};

struct AnswerWish {
  std::string model;        // may be empty
  std::vector<Turn> turns;  // parts that are not text stand for the media, in order
  std::vector<MediaPart> media;
  LookWish look;
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature, top_p, repetition_penalty;
  std::optional<int64_t> top_k;
  double min_p = 0;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  int64_t choices = 1;
  bool stream = false;
  bool stream_usage = false;
  bool logprobs = false;
  int64_t top_logprobs = 0;
  bool evidence = true;
  bool ignore_end = false;  // go on past the end of the turn
};

// Throws ApiError.
AnswerWish read_chat_request(const nlohmann::json& body);

// The parts of a message's content, a string or a list. Shared with read_responses_request.
void read_content(const nlohmann::json& content, const std::string& place, Turn& turn,
                  std::vector<MediaPart>& media);
// mm_processor_kwargs and media_io_kwargs of the body.
class Fields;
LookWish read_look(Fields& body);

// How a video, or with `frames` a folder of that many ready frames, is looked at.
InputOptions input_options(const LookWish& look, std::optional<int64_t> frames);
// Seconds of their video at which ready frames begin.
double first_time(const LookWish& look);

}  // namespace kinora::server
