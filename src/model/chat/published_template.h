// The chat template that a model directory publishes, and the tokens that it may name. Read when a
// model is loaded.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace kinora {

struct PublishedTemplate {
  std::string text;  // empty when the directory has none
  std::string path;  // of the file that holds it
  // Variables of the template: bos_token and so on, with their texts.
  std::vector<std::pair<std::string, std::string>> tokens;
};

// chat_template.jinja, or the chat_template of chat_template.json, processor_config.json or
// tokenizer_config.json, in this order; of several, the one named "default". Throws bad_input for
// a file that is no JSON object or a list without a default.
PublishedTemplate read_chat_template(const FileSystem& files, const std::string& directory);

}  // namespace kinora
