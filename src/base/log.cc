#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

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

void set_log_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      logger().set_level(spdlog::level::debug);
      break;
    case LogLevel::info:
      logger().set_level(spdlog::level::info);
      break;
    case LogLevel::warning:
      logger().set_level(spdlog::level::warn);
      break;
    case LogLevel::off:
      logger().set_level(spdlog::level::off);
      break;
  }
}

void log_debug(std::string_view message) { logger().debug("{}", message); }
void log_info(std::string_view message) { logger().info("{}", message); }
void log_warning(std::string_view message) { logger().warn("{}", message); }

}  // namespace kinora
