// What stands on the shelf. Used by the files of this folder only.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/shelf/shelf.h"

namespace kinora::server {

// Passes progress of a session on to whoever asks just now.
struct Shelf::Watcher {
  std::mutex mutex;
  OnProgress target;

  OnProgress pass_on(const std::shared_ptr<Watcher>& self) const {
    return [self](std::string_view stage, int64_t done, int64_t total) {
      const std::lock_guard lock(self->mutex);
      if (self->target) self->target(stage, done, total);
    };
  }
  void set(OnProgress wanted) {
    const std::lock_guard lock(mutex);
    target = std::move(wanted);
  }
};

// After part `part` of turn `turn`, or with no parts left, after the whole turn.
struct Shelf::Place {
  std::string key;
  size_t turn = 0;
  size_t part = 0;   // one past it
  size_t looks = 0;  // so far
  bool visual = false;
};

struct Shelf::Base {
  std::mutex forking;
  std::unique_ptr<SessionState> session;
  std::vector<MediaPtr> media;
  std::exception_ptr failure;
  bool ready = false;
  int64_t bytes = 0;
  MemoryBytes tiers;
  int64_t tokens = 0;
  uint64_t used_at = 0;
};

struct Shelf::Talk {
  std::shared_ptr<Watcher> watcher = std::make_shared<Watcher>();
  std::unique_ptr<SessionState> session;
  std::shared_ptr<Base> base;  // whose rows it shares; null: none
  std::vector<MediaPtr> media;
  size_t looks = 0;   // inputs in the session
  int64_t bytes = 0;  // as counted on the shelf
  MemoryBytes tiers;  // of those
  uint64_t used_at = 0;
};

// Sets the target for a while.
class Shelf::Watching {
 public:
  Watching(Watcher& watcher, const OnProgress& target) : watcher_(watcher) { watcher.set(target); }
  ~Watching() { watcher_.set(nullptr); }
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;

 private:
  Watcher& watcher_;
};

// Bytes that a question will need, taken before it is worked on.
class Shelf::Reservation {
 public:
  // Waits while others use them; throws what cannot fit, or does not get its turn.
  Reservation(Shelf& shelf, int64_t bytes, const CancelToken& cancel);
  ~Reservation() { resize(0); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // What is on the shelf from now on is counted there.
  void resize(int64_t bytes);
  void hand_over() { bytes_ = 0; }

 private:
  Shelf& shelf_;
  int64_t bytes_ = 0;
};

VisualRequest request_of(const Look& look);
// Adds it to a session; throws ApiError for one that is too large to be looked at at all.
void add_look(SessionState& session, const Look& look, const CancelToken& cancel);
// Messages from below name what was opened; people know it by another name.
std::string named(std::string text, const std::vector<Look>& looks);
[[noreturn]] void rethrow_named(const Error& error, const std::vector<Look>& looks);

}  // namespace kinora::server
