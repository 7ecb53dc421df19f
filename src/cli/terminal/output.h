// What the program prints, where printing can fail: a closed descriptor, a full disk. Standard
// output carries results, so losing some of it is an error with an exit code of its own kind;
// standard error carries remarks, and a remark that cannot be shown must not end the work.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace kinora::cli {

// Before anything is opened: a standard descriptor that came closed is taken by something
// harmless, or the next file that is opened would get what is printed.
void guard_standard_descriptors();

// A result, or a piece of one: written out before it returns. Throws a resource error when it
// cannot be written. Whole results may also be left to fmt::print and finish_output().
void show(std::string_view text);

// To standard error, as it is. Never throws.
void remark(std::string_view text);
template <typename... Arguments>
void remark(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  remark(std::string_view(fmt::format(format, std::forward<Arguments>(arguments)...)));
}
// "kinora: MESSAGE" to standard error, on one line whatever the message holds.
void complain(std::string_view message);

// JSON as text. Names of files may hold any bytes; those that are no UTF-8 are replaced.
std::string json_text(const nlohmann::json& value, int indent = 2);

// Writes what is still held back. The program's exit code: `code`, or that of a resource error when
// the work went well and some of what it printed was lost.
int finish_output(int code);

}  // namespace kinora::cli
