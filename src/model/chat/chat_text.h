// Helpers for writing the families' chat forms.
#pragma once

#include <string>
#include <string_view>

#include "model/conversation.h"

namespace kinora {

// A turn's text where the template takes a string.
std::string plain_text(const Turn& turn);

// Strips what Python's str.strip removes: Unicode white space and the ASCII separators.
std::string_view trim(std::string_view text);
std::string_view trim_lines(std::string_view text);        // without newlines at both ends
std::string_view trim_first_lines(std::string_view text);  // without newlines at the beginning

// The system prompt of a conversation that brings none. `published` is the directory's template,
// empty when there is none: variants of a family write `usual`, plain_system or nothing.
inline constexpr std::string_view plain_system = "You are a helpful assistant.";
std::string default_system(std::string_view usual, std::string_view published);

}  // namespace kinora
