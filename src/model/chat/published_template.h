// The chat template that a model directory publishes. It is not interpreted: its words tell the
// variants of a family apart (default system prompt, dates). Used when a model is loaded.
#pragma once

#include <string>

#include "base/file.h"

namespace kinora {

// chat_template.jinja, chat_template.json, or the chat_template of tokenizer_config.json (of
// several, the one named "default"); empty when there is none.
std::string read_chat_template(const FileSystem& files, const std::string& directory);

}  // namespace kinora
