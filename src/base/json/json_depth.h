// A check before JSON from a file is parsed: values within values are taken apart, printed and
// compared by calls within calls, so that a hostile file could use up the stack. Every reader of a
// model's directory asks here first.
#pragma once

#include <string_view>

namespace kinora {

// What published files need several times over.
inline constexpr int kMaxJsonDepth = 64;

// Whether lists and objects nest deeper than that. One pass, whether the text is JSON or not.
bool json_nests_too_deeply(std::string_view text);

}  // namespace kinora
