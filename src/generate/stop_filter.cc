#include "generate/stop_filter.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace kinora {

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) throw Error(ErrorKind::usage, "a stop string is empty");
  }
}

std::string StopFilter::feed(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;
  size_t found = std::string::npos;
  for (const std::string& stop : stops_) found = std::min(found, held_.find(stop));
  if (found != std::string::npos) {
    stopped_ = true;
    return std::exchange(held_, {}).substr(0, found);
  }
  // Hold back the longest tail that begins some stop string.
  size_t tail = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > tail; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) tail = length;
    }
  }
  std::string shown = held_.substr(0, held_.size() - tail);
  held_.erase(0, held_.size() - tail);
  return shown;
}

std::string StopFilter::finish() { return stopped_ ? std::string() : std::exchange(held_, {}); }

}  // namespace kinora
