#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "base/one_line.h"

namespace kinora {
namespace {

// The one shared object of the process, as a log must be: made on first use, thread-safe.
spdlog::logger& logger() {
  static const auto instance = [] {
    auto made = std::make_shared<spdlog::logger>("kinora",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_level(spdlog::level::warn);
    made->set_pattern("kinora: %l: %v");
    return made;
  }();
  return *instance;
}

}  // namespace

void log_warning(std::string_view message) { logger().warn("{}", one_line(message)); }

}  // namespace kinora
