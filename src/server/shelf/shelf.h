// Sessions that are kept because someone will ask again. A video is read once: the session that
// read it stays on the shelf, and every conversation about it is a fork that holds the video's rows
// together with the others. A conversation's own session stays as well, so that its next question
// reads only what is new. What is used least recently goes when memory is short.
//
// Whether something can be used again is decided by what a request says (roles, texts, contents of
// videos, how they are looked at); the engine then compares tokens once more.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <kinora/session.h>

#include "engine/session_state.h"
#include "server/media/media.h"

namespace kinora::server {

// A video or picture as it is to be looked at.
struct Look {
  MediaPtr media;
  InputOptions options;
  double begin = 0;  // seconds of its video at which it begins, of ready frames
};

class LiveStream;

struct Question {
  std::vector<Turn> turns;  // the last one is the user's; parts that are not text stand for …
  std::vector<Look> looks;  // … these, in order
  GenerateOptions generate;
  bool evidence = true;
  std::shared_ptr<LiveStream> stream;  // that it is about, instead of what is on the shelf
};

struct Told {
  Answer answer;
  std::vector<InputInfo> inputs;
  int64_t prompt_tokens = 0;  // of the whole conversation
  int64_t cached_tokens = 0;  // of those, not computed for this question
  int64_t visual_tokens = 0;  // of those, videos and pictures
  // For the videos, where this question was the first about them.
  double read_seconds = 0;
  double decode_seconds = 0;  // of the threads that decoded
  int64_t frames_read = 0;
  FetchCounts fetched;  // of rows that wait in a file, for this question
};

// What was looked at, and how much of it was computed, from the session that answered.
void describe_inputs(const SessionState& session, Told& told);
// What a question fetched, of a session that stood at `before` when it began.
FetchCounts fetched_since(const FetchCounts& before, const SessionState& session);

using OnPiece = std::function<void(std::string_view)>;
using OnProgress = std::function<void(std::string_view stage, int64_t done, int64_t total)>;

class Shelf {
 public:
  // `max_bytes` is for keys and values of everything on the shelf and in work. Who needs what
  // others use of it waits at most `patience` seconds.
  Shelf(const Engine& engine, const SessionOptions& options, int64_t max_bytes, double patience);
  ~Shelf();

  // Answers. Waits, at most until the question's cancel token is raised, while others use the
  // memory that it needs; refuses what would not fit even alone.
  Told ask(const Question& question, const OnPiece& on_piece, const OnProgress& on_progress);
  // Reads the videos of a question, so that asking is fast.
  void prepare(const Question& question, const OnProgress& on_progress);
  // Keeps this much memory free for someone else, for as long as it is held.
  std::shared_ptr<void> hold(int64_t bytes, const CancelToken& cancel);
  // Reads the video of a question that is about nothing else, if it was not read yet, and writes
  // what was read to a file.
  MemoryFile save(const Question& question, const std::string& path);
  // Forgets every session about this content that is not in use.
  void forget(const std::string& media_key);

  struct Report {
    int64_t videos = 0;  // sessions that others fork
    int64_t talks = 0;
    int64_t bytes = 0;  // rows, each once, and what is taken for questions in work
    // Of rows on the shelf: where they are, each once; `shared` adds up what every conversation
    // reads of rows that it does not hold alone.
    MemoryBytes tiers;
    int64_t max_bytes = 0;
    int64_t hits = 0;  // questions about a video that had been read
    int64_t misses = 0;
  };
  Report report() const;
  int64_t token_bytes() const { return token_bytes_; }  // keys and values of one token

 private:
  struct Base;
  struct Talk;
  struct Watcher;
  class Watching;
  class Reservation;
  struct Place;  // a point of a conversation by which sessions are found

  static std::vector<Place> places_of(const Question& question);
  std::shared_ptr<Base> base_for(const Question& question, const std::vector<Place>& places,
                                 const OnProgress& on_progress, Told& told);
  void reopen_base(Base& base, const Question& question, const Place& place);
  void read_base(Base& base, const Question& question, const Place& place,
                 const OnProgress& on_progress, Told& told);
  std::unique_ptr<Talk> take_talk(const std::string& key);
  void keep_talk(std::unique_ptr<Talk> talk, const Question& question, const Answer& answer);
  // With the lock held. False when there is nothing left to give up.
  bool evict_one();
  static MemoryBytes own_bytes(const Talk& talk);

  Engine engine_;
  SessionOptions options_;
  int64_t max_bytes_;
  std::chrono::duration<double> patience_;
  int64_t token_bytes_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<Base>> bases_;
  std::map<std::string, std::unique_ptr<Talk>> talks_;
  int64_t used_ = 0;  // bytes of what is on the shelf and of reservations
  uint64_t clock_ = 0;
  Report report_;
};

}  // namespace kinora::server
