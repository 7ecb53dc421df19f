// Progress of a long step, reported to whoever shows it (a terminal line, a server event, nobody).
// Called from worker threads; implementations synchronise themselves and return quickly.
#pragma once

#include <cstdint>
#include <string_view>

namespace kinora {

class Progress {
 public:
  virtual ~Progress() = default;
  // `stage` is a word such as "decode"; `total` is 0 while it is not known.
  virtual void update(std::string_view stage, int64_t done, int64_t total) = 0;
};

}  // namespace kinora
