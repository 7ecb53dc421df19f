// The methods of Python's str, and the work behind those that filters share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/runtime.h"

namespace kinora::jinja {

// At most `count` times when that is not negative; an empty `old` stands between all characters.
std::string replace_text(Runtime& runtime, std::string_view text, std::string_view old,
                         std::string_view fresh, int64_t count);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);

using TextMethod = Value (*)(Runtime&, const std::string& self, const Arguments&);
TextMethod find_text_method(std::string_view name);  // or null

}  // namespace kinora::jinja
