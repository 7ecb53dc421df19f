// Names that people type: lists of them in messages, and the one that was probably meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kinora {

// What a person typed, for a message: in quotes, on one line, cut where it is long.
std::string in_quotes(std::string_view text);

// "a, b or c"; `word` stands before the last one.
std::string list_names(std::span<const std::string> names, std::string_view word = "and");

// The name that was probably meant: within two edits, else the first that begins with what was
// given, ignoring case. Empty: none is near.
std::string_view nearest_name(std::string_view given, std::span<const std::string> names);

// "did you mean momo? There are dense, momo and grid"; without the question where no name is near.
std::string suggest_name(std::string_view given, std::span<const std::string> names);

}  // namespace kinora
