#include "cli/ask_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/policy/names.h"

namespace kinora::cli {
namespace {

constexpr std::array suffixes = {
    ".mp4", ".m4v", ".mov",  ".mkv", ".webm", ".avi", ".ts",   ".mts",  ".mpg",  ".mpeg",
    ".flv", ".wmv", ".3gp",  ".ogv", ".h264", ".264", ".h265", ".hevc", ".vob",  ".m3u8",
    ".gif", ".png", ".jpeg", ".jpg", ".bmp",  ".ppm", ".webp", ".tif",  ".tiff", ".kinora"};

bool has_space(std::string_view text) { return text.find_first_of(" \t\n") != std::string::npos; }

// As one would type it in a shell.
std::string typed(const std::string& word) {
  const auto plain = [](char c) {
    return (static_cast<unsigned char>(c) & 0x80) != 0 ||
           std::string_view(" \t\n\"'\\$`*?!&|;<>()[]{}~#").find(c) == std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string quoted = "\"";
  for (const char c : word) {
    if (c == '"' || c == '\\' || c == '$' || c == '`') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

// `kinora ask a.mp4 b.mp4 "What?"`
std::string command_of(const std::vector<std::string>& inputs, const std::string& question) {
  std::string command = "kinora ask";
  for (const std::string& input : inputs) command += " " + typed(input);
  return fmt::format("{} \"{}\"", command, question);
}

[[noreturn]] void refuse(const std::string& problem, const std::vector<std::string>& inputs,
                         const std::string& question) {
  throw Error(ErrorKind::usage, fmt::format("{}: {}", problem, command_of(inputs, question)));
}

}  // namespace

bool is_input_word(std::string_view word, const std::function<bool(const std::string&)>& exists) {
  if (word == "demo" || word == "-" || word.find("://") != std::string_view::npos) return true;
  if (word.empty()) return false;
  if (exists(std::string(word))) return true;
  if (has_space(word)) return false;
  if (word.starts_with("/") || word.starts_with("./") || word.starts_with("../")) return true;
  std::string lower(word);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return std::any_of(suffixes.begin(), suffixes.end(), [&](std::string_view suffix) {
    return lower.size() > suffix.size() && lower.ends_with(suffix);
  });
}

AskWords split_ask_words(const std::vector<std::string>& words,
                         const std::function<bool(const std::string&)>& exists) {
  std::vector<std::string> inputs, others;
  for (const std::string& word : words) {
    (is_input_word(word, exists) ? inputs : others).push_back(word);
  }
  // "demmo What?": opening it says what was meant.
  const std::array<std::string, 1> demo = {"demo"};
  if (words.size() == 2 && others.size() == 2 && !nearest_name(words[0], demo).empty()) {
    return {{words[0]}, words[1]};
  }
  if (others.empty()) refuse("there is no question; write it last, in quotes", inputs, "…");
  std::string joined;
  for (const std::string& word : others) joined += (joined.empty() ? "" : " ") + word;
  const bool last_is_input = is_input_word(words.back(), exists);
  if (last_is_input && others.size() == 1) refuse("the question comes last", inputs, joined);
  // A shell leaves spaces in what was quoted: then the words before it are names of inputs, and
  // opening them says what is wrong with them.
  if (last_is_input || (others.size() > 1 && !has_space(words.back()))) {
    refuse("write the question in quotes, after the videos", inputs, joined);
  }
  return {{words.begin(), words.end() - 1}, words.back()};
}

AskWords split_ask_words(const std::vector<std::string>& words) {
  return split_ask_words(words, [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  });
}

}  // namespace kinora::cli
