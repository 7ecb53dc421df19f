#include "cli/chat_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"

namespace kinora::cli {
namespace {

enum class Needs { nothing, maybe_file, file };

struct Entry {
  ChatCommand command;
  std::string_view name;
  Needs needs;
  std::string_view shown;  // in /help
  std::string_view text;
};

constexpr Entry entries[] = {
    {ChatCommand::add, "/add", Needs::file, "/add FILE", "look at one more video or picture"},
    {ChatCommand::evidence, "/evidence", Needs::maybe_file, "/evidence [FILE.png]",
     "the times that the last answer rests on, or their frames drawn"},
    {ChatCommand::save, "/save", Needs::file, "/save FILE.md", "write the conversation to a file"},
    {ChatCommand::save, "/save", Needs::file, "/save FILE.kinora",
     "keep what was read, for kinora ask FILE.kinora"},
    {ChatCommand::stats, "/stats", Needs::nothing, "/stats",
     "frames, tokens, memory and the times of the last answer"},
    {ChatCommand::clear, "/clear", Needs::nothing, "/clear",
     "forget the conversation, keep the video"},
    {ChatCommand::help, "/help", Needs::nothing, "/help", "this list"},
    {ChatCommand::quit, "/quit", Needs::nothing, "/quit", "end (as does Ctrl-D)"},
    {ChatCommand::quit, "/exit", Needs::nothing, "", ""},
};

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

const Entry* find_entry(std::string_view name) {
  const auto found = std::find_if(std::begin(entries), std::end(entries),
                                  [&](const Entry& entry) { return entry.name == name; });
  return found == std::end(entries) ? nullptr : found;
}

// Names in the directory of `begun` that begin with its last part.
std::vector<std::string> files_like(std::string_view begun) {
  const size_t slash = begun.rfind('/');
  const std::string folder(slash == std::string_view::npos ? "." : begun.substr(0, slash + 1));
  const std::string_view last = begun.substr(slash == std::string_view::npos ? 0 : slash + 1);
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(last) || (last.empty() && name.starts_with('.'))) continue;
    std::error_code ignored;
    names.push_back(std::string(begun.substr(0, begun.size() - last.size())) + name +
                    (at->is_directory(ignored) ? "/" : ""));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TypedCommand parse_chat_command(std::string_view line) {
  const std::string_view text = trimmed(line);
  const size_t end = std::min(text.find_first_of(" \t"), text.size());
  const Entry* entry = find_entry(text.substr(0, end));
  if (entry == nullptr) {
    throw Error(ErrorKind::usage,
                fmt::format("there is no command {}; /help lists them", text.substr(0, end)));
  }
  TypedCommand typed{entry->command, std::string(trimmed(text.substr(end)))};
  if (entry->needs == Needs::file && typed.file.empty()) {
    throw Error(ErrorKind::usage, fmt::format("name a file: {}", entry->shown));
  }
  if (entry->needs == Needs::nothing && !typed.file.empty()) {
    throw Error(ErrorKind::usage, fmt::format("{} stands alone", entry->name));
  }
  return typed;
}

std::string chat_help() {
  std::string text = "Type a question and press Enter; what was read of the video is used again.\n";
  for (const Entry& entry : entries) {
    if (!entry.shown.empty()) text += fmt::format("  {:<21} {}\n", entry.shown, entry.text);
  }
  return text + "Tab completes commands and files; Ctrl-C stops an answer.\n";
}

Completions complete_chat(std::string_view typed) {
  Completions found;
  if (!typed.starts_with('/')) return found;
  const size_t blank = typed.find(' ');
  if (blank == std::string_view::npos) {
    for (const Entry& entry : entries) {
      const std::string name(entry.name);
      const bool known =
          std::find(found.words.begin(), found.words.end(), name) != found.words.end();
      if (entry.name.starts_with(typed) && !known) found.words.push_back(name);
    }
    return found;
  }
  const Entry* entry = find_entry(typed.substr(0, blank));
  if (entry == nullptr || entry->needs == Needs::nothing) return found;
  found.from = std::min(typed.find_first_not_of(' ', blank), typed.size());
  found.words = files_like(typed.substr(found.from));
  return found;
}

}  // namespace kinora::cli
