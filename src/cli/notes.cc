#include "cli/notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace kinora::cli {

void Notes::add(const std::string& text) {
  if (text.empty() || unsaid({text}).empty()) return;
  said_.push_back(text);
  if (printed_) fmt::print(stderr, "kinora: note: {}\n", text);
}

std::vector<std::string> Notes::unsaid(const std::vector<std::string>& warnings) const {
  std::vector<std::string> left = warnings;
  std::erase_if(left, [&](const std::string& warning) {
    return std::find(said_.begin(), said_.end(), warning) != said_.end();
  });
  return left;
}

std::vector<std::string> Notes::with(const std::vector<std::string>& warnings) const {
  std::vector<std::string> all = said_;
  const std::vector<std::string> rest = unsaid(warnings);
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

}  // namespace kinora::cli
