// Comma-separated files with a header line: quoted fields, doubled quotes, line ends inside quotes.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kinora {

// One map per row, by the header's names. Throws bad_input, with the row's number, when a row has
// another number of fields than the header or a quote is never closed.
std::vector<std::map<std::string, std::string>> read_csv(std::string_view text);

}  // namespace kinora
