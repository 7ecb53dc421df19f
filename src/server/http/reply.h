// The reply to one request on its way out: what it says is put on the connection's own thread, and
// no more is said once the connection has gone on to another request. Used by connection.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http/descriptor.h"
#include "server/http/http.h"

namespace kinora::server {

// A connection as its replies see it. All but `post` are called from work that was posted.
class ReplyTarget {
 public:
  virtual ~ReplyTarget() = default;

  virtual void post(std::function<void()> work) = 0;  // any thread

  // The first lines of a reply; without a length the body comes in chunks or ends the connection.
  virtual std::string head_of(int status, const Headers& headers,
                              std::optional<int64_t> length) const = 0;
  virtual void queue(std::string bytes, bool last) = 0;
  virtual void queue_file(Descriptor file, int64_t offset, int64_t count) = 0;
  virtual void become_socket(int64_t max_message_bytes, WebSocketEvents events) = 0;
  virtual void cancel() = 0;

  virtual bool head_only() const = 0;   // the request wants no body
  virtual bool chunks() const = 0;      // the other side understands them
  virtual uint64_t number() const = 0;  // of the request that is being answered
  virtual const CancelToken& gone() const = 0;
};

// Made on the connection's own thread.
std::shared_ptr<HttpReply> make_reply(std::shared_ptr<ReplyTarget> target, const std::string& id);

}  // namespace kinora::server
