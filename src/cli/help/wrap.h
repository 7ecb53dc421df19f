// Lines of help: broken between words, with a left column. Used by help of commands and policies
// and by the man page.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kinora::cli {

constexpr size_t help_width = 100;

// Columns that a text takes: its characters, of which each takes one.
size_t width_of(std::string_view text);

// `left` at `indent`, then `text` at `column`, broken between words so that lines keep their width.
std::string entry(size_t indent, std::string_view left, size_t column, std::string_view text);

}  // namespace kinora::cli
