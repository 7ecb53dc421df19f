// Base64 as data: URLs carry it. Used by media.cc.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kinora::server {

// The standard and the URL alphabet; padding may lack, white space is passed over. Nothing for what
// is no base64.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace kinora::server
