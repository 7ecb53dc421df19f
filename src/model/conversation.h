// A conversation as a person has it: turns of text, pictures and videos.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "base/modality.h"

namespace kinora {

struct ContentPart {
  Modality modality = Modality::text;
  std::string text;  // when modality is text
  // Of a video that stands in the prompt unit by unit (VisualPlan::units_apart): this unit's time
  // in seconds, and whether it goes on with the video of the part before.
  double time = std::numeric_limits<double>::quiet_NaN();
  bool continues = false;
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
