// NFC: one way of writing every character, so that é is one token however it was typed.
#pragma once

#include <string>
#include <string_view>

namespace kinora::tokenizer {

// `text` (valid UTF-8) in NFC: `text` itself if it already is, as most text is; else a view of
// `scratch`.
std::string_view to_nfc(std::string_view text, std::string& scratch);

}  // namespace kinora::tokenizer
