// Log lines for people who debug: to standard error, quiet by default. What a user must know is an
// Error or part of the output, never only a log line.
#pragma once

#include <string_view>

namespace kinora {

enum class LogLevel { debug, info, warning, off };

void set_log_level(LogLevel level);  // the default is LogLevel::warning
void log_debug(std::string_view message);
void log_info(std::string_view message);
void log_warning(std::string_view message);

}  // namespace kinora
