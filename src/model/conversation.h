// A conversation as a person has it: turns of text, pictures and videos.
#pragma once

#include <string>
#include <vector>

#include "base/modality.h"

namespace kinora {

struct ContentPart {
  Modality modality = Modality::text;
  std::string text;  // when modality is text
};

struct Turn {
  std::string role;  // "system", "user", "assistant"
  std::vector<ContentPart> parts;
};

struct Conversation {
  std::vector<Turn> turns;
  bool add_generation_prompt = true;  // end with the opening of the assistant's turn
};

}  // namespace kinora
