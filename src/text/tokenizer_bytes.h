// The byte-level alphabet: a vocabulary file is text, so each of the 256 bytes is written as one
// printable character (a space as Ġ). Reading the file turns tokens back into bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kinora::tokenizer {

// The bytes that `token` (UTF-8) stands for; nothing when one of its characters is not of the
// alphabet.
std::optional<std::string> byte_level_to_bytes(std::string_view token);

}  // namespace kinora::tokenizer
