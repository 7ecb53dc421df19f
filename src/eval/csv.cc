#include "eval/csv.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace kinora {

std::vector<std::map<std::string, std::string>> read_csv(std::string_view text) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row;
  std::string field;
  bool quoted = false;
  const auto end_row = [&] {
    row.push_back(std::exchange(field, {}));
    if (row.size() > 1 || !row.front().empty()) rows.push_back(row);
    row.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c != '"') {
        field += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        field += text[++i];
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      row.push_back(std::exchange(field, {}));
    } else if (c == '\n') {
      end_row();
    } else if (c != '\r') {
      field += c;
    }
  }
  if (quoted) throw Error(ErrorKind::bad_input, "the file ends inside a quoted field");
  if (!field.empty() || !row.empty()) end_row();
  if (rows.empty()) throw Error(ErrorKind::bad_input, "the file has no header line");

  std::vector<std::map<std::string, std::string>> named;
  for (size_t r = 1; r < rows.size(); ++r) {
    if (rows[r].size() != rows[0].size()) {
      throw Error(ErrorKind::bad_input, fmt::format("row {} has {} fields, the header has {}", r,
                                                    rows[r].size(), rows[0].size()));
    }
    std::map<std::string, std::string>& target = named.emplace_back();
    for (size_t c = 0; c < rows[0].size(); ++c) target[rows[0][c]] = rows[r][c];
  }
  return named;
}

}  // namespace kinora
