// Decoding tokens one at a time, as they are generated. What push() gives is always whole
// characters, and all of it joined is what Tokenizer::decode gives for all ids at once.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace kinora {

class TextStream {
 public:
  // The tokenizer must outlive the stream.
  explicit TextStream(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that became complete with this token; often empty in the middle of a character.
  std::string push(int32_t id);

  // The rest: U+FFFD when the tokens ended in the middle of a character. The stream is then as new.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string waiting_;  // at most three bytes of an unfinished character
  bool begun_ = false;   // some text was given
};

}  // namespace kinora
