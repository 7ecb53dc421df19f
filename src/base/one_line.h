// Text from files, servers and command lines made fit for one line of a terminal: a hostile name
// must not end the line, move the cursor, or turn the direction of what follows. Used wherever a
// message is shown.
#pragma once

#include <string>
#include <string_view>

namespace kinora {

// Control characters, marks that turn the direction of text, line separators and bytes that are not
// UTF-8 become escapes ("\n", "\x1b", "\u202e"); everything else stays as it is.
std::string one_line(std::string_view text);

}  // namespace kinora
