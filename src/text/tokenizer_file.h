// Reading Hugging Face's tokenizer.json: everything in it that decides ids is checked here, once,
// and what cannot be honoured is refused by name. Tokenizer::load uses it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "text/byte_pair.h"
#include "text/tokenizer_added.h"

namespace kinora::tokenizer {

// One step between the text and its words.
struct PreTokenizerStep {
  std::string expression;     // split by this; empty: none
  bool prefix_space = false;  // put a space before every piece that has none, before splitting
};

struct TokenizerFile {
  // By id; `bytes` is what the token stands for, `present` is false for holes in the numbering.
  struct Token {
    std::string bytes;
    bool present = false;
    bool special = false;
  };
  std::vector<Token> tokens;
  std::array<int32_t, 256> byte_tokens{};  // -1 for a byte that has none
  int32_t unknown = -1;                    // the token of such bytes, if any
  bool fuse_unknown = false;               // one for several in a row
  std::vector<BytePair::Merge> merges;
  bool ignore_merges = false;
  std::unordered_map<std::string, int32_t> whole_words;  // bytes → id, for ignore_merges only
  std::vector<AddedToken> added;
  std::unordered_map<std::string, int32_t> ids;  // by the token as the file writes it
  bool nfc = false;
  std::vector<PreTokenizerStep> steps;
  std::vector<int32_t> prefix, suffix;  // put around a text by the post-processor
  std::optional<std::string> begin_token, end_token, pad_token;  // tokenizer_config.json
};

// Throws one Error that names the file and what is wrong in it.
TokenizerFile read_tokenizer_file(const FileSystem& files, const std::string& directory);

}  // namespace kinora::tokenizer
