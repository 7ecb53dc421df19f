// Watches streamed text for stop strings. Text that might be the beginning of a stop string is
// held back until it is clear, so that no part of a stop string is ever shown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kinora {

class StopFilter {
 public:
  // Throws a usage error for an empty stop string.
  explicit StopFilter(std::vector<std::string> stops);

  // Takes the next piece; returns what may be shown now. After a stop string is found `stopped`
  // is true and nothing more comes out.
  std::string feed(std::string_view piece);
  // The text held back when generation ends for another reason.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace kinora
