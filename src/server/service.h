// The server: an engine, what is kept of videos and conversations, and the routes of the API.
//
//   Service service(engine, session_options, {.model = "Qwen2.5-VL-3B-Instruct"});
//   … until the program is told to end …
//   service.drain(30);
//
// Used by `kinora serve`.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <kinora/session.h>

#include "server/chat_request.h"
#include "server/http/http.h"
#include "server/live/streams.h"
#include "server/media/fetch.h"
#include "server/media/media.h"
#include "server/memory_library.h"
#include "server/metrics.h"
#include "server/shelf/shelf.h"
#include "server/video_library.h"
#include "server/work_queue.h"

namespace kinora::server {

struct ServiceOptions {
  HttpOptions http;
  MediaOptions media;
  std::string library;   // folder of uploaded videos; empty: none are taken
  std::string memories;  // folder of saved memories; empty: none are kept
  std::function<void(const MemoryFile& file)> on_saved;  // told of every memory; null: nobody
  std::string model;                                     // the name that clients call it by
  std::vector<std::string> keys;   // bearer keys, one of which a request must bring; none: all may
  std::vector<std::string> hosts;  // names this server goes by, besides those of the loopback
  int64_t max_body_bytes = int64_t{256} << 20;
  int64_t max_upload_bytes = int64_t{8} << 30;
  int64_t max_row_bytes = int64_t{4} << 30;  // keys and values of everybody together
  int64_t default_tokens = 512;              // of an answer whose length nobody limits
  int64_t max_tokens = 4096;
  int max_running = 16;       // requests that are worked on at a time
  int64_t max_waiting = 256;  // that wait for that
  double request_seconds = 600;
  double memory_seconds = 30;  // that a request waits for memory which others use
  bool fetch = false;          // media from http(s) addresses
  FetchOptions fetching;
  // Addresses of any kind that may be watched, written exactly so; FFmpeg itself reaches them.
  std::vector<std::string> stream_from;
  int64_t max_streams = 8;
  int64_t max_message_bytes = int64_t{32} << 20;     // of a WebSocket
  std::function<void(const std::string& line)> log;  // one JSON object a line; null: nobody
};

class Service {
 public:
  Service(const Engine& engine, const SessionOptions& session, const ServiceOptions& options);
  ~Service();

  uint16_t port() const { return http_->port(); }
  // Answers what is under way, and nothing new: others are told to come back later.
  void drain(double seconds);

 private:
  using Reply = std::shared_ptr<HttpReply>;
  struct Route {
    std::string method;
    std::string path;  // a last part "*" stands for any one part
    BodyRule body;
    bool open = false;    // to everybody, keys or not
    bool queued = false;  // work that may take long; else it is answered at once
    std::function<void(Service&, const HttpRequest&, const Reply&)> run;
  };
  static std::vector<Route> routes(const ServiceOptions& options);
  const Route* find(const HttpRequest& request, bool& known_path) const;

  BodyRule check(const HttpRequest& head) const;
  void check_origin(const HttpRequest& head) const;
  void check_key(const HttpRequest& head) const;
  void handle(HttpRequest request, const Reply& reply);
  void run(const Route& route, const HttpRequest& request, const Reply& reply);
  void log(const HttpRequest& request, int status, double seconds) const;

  // service_pages.cc
  void health(const HttpRequest& request, const Reply& reply);
  void readiness(const HttpRequest& request, const Reply& reply);
  void page(const HttpRequest& request, const Reply& reply);
  void metrics(const HttpRequest& request, const Reply& reply);
  void models(const HttpRequest& request, const Reply& reply);
  nlohmann::json model_json() const;

  // service_videos.cc
  void add_video(const HttpRequest& request, const Reply& reply);
  void list_videos(const HttpRequest& request, const Reply& reply);
  void show_video(const HttpRequest& request, const Reply& reply);
  void delete_video(const HttpRequest& request, const Reply& reply);
  void video_content(const HttpRequest& request, const Reply& reply);
  void video_picture(const HttpRequest& request, const Reply& reply);
  void video_scenes(const HttpRequest& request, const Reply& reply);
  void index_video(const HttpRequest& request, const Reply& reply);

  // service_streams.cc
  void start_stream(const HttpRequest& request, const Reply& reply);
  void list_streams(const HttpRequest& request, const Reply& reply);
  void show_stream(const HttpRequest& request, const Reply& reply);
  void stop_stream(const HttpRequest& request, const Reply& reply);
  void stream_picture(const HttpRequest& request, const Reply& reply);
  void push_frames(const HttpRequest& request, const Reply& reply);
  StreamSource stream_source(const std::string& url, std::optional<double> speed,
                             const CancelToken& cancel);

  // service_memories.cc
  void save_memory(const HttpRequest& request, const Reply& reply);
  void list_memories(const HttpRequest& request, const Reply& reply);
  void show_memory(const HttpRequest& request, const Reply& reply);
  void delete_memory(const HttpRequest& request, const Reply& reply);
  void memory_content(const HttpRequest& request, const Reply& reply);

  // chat.cc
  void chat(const HttpRequest& request, const Reply& reply);
  Question question_of(const AnswerWish& wish, const CancelToken& cancel);
  // The stream or memory that a part names, which then is all that the question is about.
  bool find_special(const std::string& name, const AnswerWish& wish, Question& question);
  MediaPtr known_media(const std::string& name);  // by uuid or id; may be null
  void check_model(const std::string& name) const;
  // Asks and counts.
  Told tell(const Question& question, const OnPiece& on_piece, const OnProgress& on_progress);

  // responses.cc
  void respond(const HttpRequest& request, const Reply& reply);

  const Tokenizer& tokenizer() const;

  ServiceOptions options_;
  Engine engine_;
  SessionOptions session_;
  std::shared_ptr<MediaFetcher> fetcher_;  // null: nothing is fetched
  std::vector<Route> routes_;
  Metrics metrics_;
  MediaStore media_;
  VideoLibrary videos_;
  MemoryLibrary memories_;
  Shelf shelf_;
  Streams streams_;
  std::atomic<bool> ready_ = true;
  std::unique_ptr<WorkQueue> queue_;
  std::unique_ptr<HttpServer> http_;  // last: it calls into all of the above
};

// An id such as "chatcmpl-5f…".
std::string new_id(const std::string& prefix);
int64_t unix_seconds();

}  // namespace kinora::server
