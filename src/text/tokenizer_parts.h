// The parts of tokenizer.json, each read by a file of its own for tokenizer_file.cc. All throw
// bad_input for what makes no sense and unsupported for kinds that kinora does not have.
#pragma once

#include "text/tokenizer_file.h"
#include "text/tokenizer_json.h"

namespace kinora::tokenizer {

// First: the model, its tokens and those that were added (tokenizer_vocabulary.cc).
void read_vocabulary(const JsonFile& in, TokenizerFile& file);
// Then what is done to text before and after (tokenizer_steps.cc).
void read_steps(const JsonFile& in, TokenizerFile& file);

}  // namespace kinora::tokenizer
