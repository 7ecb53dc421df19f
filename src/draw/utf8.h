// Text as Cairo takes it: valid UTF-8 without control characters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kinora {

// Bytes that are no UTF-8 become question marks, control characters blanks.
std::string clean_utf8(std::string_view text);
// The longest beginning of at most this many bytes that ends with a whole character; and where the
// character that begins here ends. `text` is clean.
size_t whole_characters(std::string_view text, size_t bytes);
size_t next_character(std::string_view text, size_t begin);

}  // namespace kinora
