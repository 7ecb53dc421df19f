// Text to token ids and back, as Hugging Face `tokenizers` does it for a byte-level BPE
// tokenizer.json. Every model has one; prompts are encoded with it, answers decoded (piece by piece
// through TextStream).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace kinora {

struct EncodeOptions {
  // Special tokens written in the text, such as <|im_end|>, become those tokens. When false they
  // are text like any other: for text that a stranger wrote. (Added tokens that the file does not
  // call special are always recognised.)
  bool parse_special = true;
  // Puts around the text what the tokenizer's post-processor asks for: Llama 3's
  // <|begin_of_text|>. Chat templates write it themselves.
  bool add_special = false;
};

// May be used by many threads at once.
class Tokenizer {
 public:
  // Reads tokenizer.json (and tokenizer_config.json, where there is one) of a model directory.
  static Tokenizer load(const FileSystem& files, const std::string& directory);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Refuses text that is not valid UTF-8 with a bad-input error that says where.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Ids that no token has are passed over. Bytes that are no UTF-8 become U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // What a token stands for, byte by byte: perhaps part of a character. Empty for unknown ids.
  std::string_view bytes_of(int32_t id) const;

  // The id of a token as tokenizer.json writes it ("<|im_end|>", "Ġthe").
  std::optional<int32_t> id_of(std::string_view token) const;
  // The same, for a token that must be there: an unsupported error when it is not.
  int32_t require(std::string_view token) const;

  bool is_special(int32_t id) const;
  // One more than the largest id. (A model's embedding may have more rows.)
  int32_t vocabulary_size() const;

  // From tokenizer_config.json.
  std::optional<int32_t> begin_token() const;
  std::optional<int32_t> end_token() const;
  std::optional<int32_t> pad_token() const;

 private:
  class Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace kinora
