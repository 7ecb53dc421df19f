// The commands that a person may type in a chat: one table for what they do, what /help says and
// what Tab completes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/line_reader.h"

namespace kinora::cli {

enum class ChatCommand { add, save, evidence, stats, clear, help, quit };

struct TypedCommand {
  ChatCommand command = ChatCommand::help;
  std::string file;  // what stands behind it, without blanks around; may be empty
};

// Of a line that begins with '/'. Throws a usage error for a command that there is not, and for one
// that lacks its file or has one too many.
TypedCommand parse_chat_command(std::string_view line);

// What /help prints.
std::string chat_help();

// What may stand at the end of what was typed so far: commands, then names of files.
Completions complete_chat(std::string_view typed);

}  // namespace kinora::cli
