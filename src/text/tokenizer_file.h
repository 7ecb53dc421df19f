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

// How ids come out of words.
enum class TokenModel {
  byte_pairs,       // bytes are merged (GPT-2, Qwen, Llama 3)
  character_pairs,  // characters are merged; those without a token become bytes (SentencePiece)
  unigram,          // the pieces whose scores add up to the most (SentencePiece)
};

// One step of what is done to a text before added tokens are sought in it again.
struct TextStep {
  enum class Kind { nfc, prepend, replace };
  Kind kind = Kind::nfc;
  std::string from;  // to be replaced
  std::string to;    // instead of it, or put before the text
};

// SentencePiece's way with spaces: each becomes a mark, which is part of the tokens.
struct SpaceMarks {
  enum class Prepend { never, first, always };
  std::string mark;                   // empty: spaces are left alone
  Prepend prepend = Prepend::always;  // a mark before the text, or before every piece of it
  bool split = true;                  // a mark begins a word
};

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
  TokenModel model = TokenModel::byte_pairs;
  std::vector<Token> tokens;
  std::array<int32_t, 256> byte_tokens{};  // -1 for a byte that has none
  int32_t unknown = -1;                    // the token of such bytes, if any
  bool fuse_unknown = false;               // one for several in a row
  std::vector<BytePair::Merge> merges;
  bool ignore_merges = false;
  std::unordered_map<std::string, int32_t> whole_words;  // bytes → id, for ignore_merges only
  std::vector<AddedToken> added;
  std::unordered_map<std::string, int32_t> ids;         // by the token as the file writes it
  std::unordered_map<std::string, int32_t> vocabulary;  // but for byte_pairs: pieces → id
  std::vector<double> scores;                           // of unigram, by id
  std::vector<TextStep> text_steps;
  SpaceMarks space_marks;
  std::vector<PreTokenizerStep> steps;
  std::vector<int32_t> prefix, suffix;  // put around a text by the post-processor
  bool strip_space = false;             // one space at the beginning of a decoded text is left out
  std::optional<std::string> begin_token, end_token, pad_token;  // tokenizer_config.json
};

// Throws one Error that names the file and what is wrong in it.
TokenizerFile read_tokenizer_file(const FileSystem& files, const std::string& directory);

}  // namespace kinora::tokenizer
