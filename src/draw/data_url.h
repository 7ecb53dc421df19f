// Bytes of a picture inside a page, so that no other file is needed.
#pragma once

#include <string>
#include <string_view>

namespace kinora {

// "data:image/png;base64,…"
std::string png_data_url(std::string_view png);

}  // namespace kinora
