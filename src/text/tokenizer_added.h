// Added tokens: strings such as <|im_end|> that are one token wherever they stand, found before the
// text is split into words. The longest that begins earliest wins.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_utf8.h"

namespace kinora::tokenizer {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // left out of decoded text on request; may be refused in a prompt
  bool normalized = true;    // sought in the normalised text, not in the raw one
  bool single_word = false;  // only where no word character touches it
  bool strip_left = false;   // swallows white space before it
  bool strip_right = false;  // and after it
};

class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // Contents are not empty and differ from each other.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // Calls visit_token(id) for every added token and visit_text(piece) for every stretch between
  // them, in order. Special tokens count as text unless `parse_special`.
  template <typename VisitText, typename VisitToken>
  void for_each_piece(std::string_view text, bool parse_special, VisitText&& visit_text,
                      VisitToken&& visit_token) const {
    size_t done = 0;
    size_t search = 0;
    while (const AddedToken* token = find(text, search)) {
      size_t begin = search;
      size_t end = begin + token->content.size();
      search = end;
      if (token->special && !parse_special) continue;
      if (token->single_word && touches_word(text, begin, end)) continue;
      if (token->strip_left) begin = skip_spaces_back(text, begin, done);
      if (token->strip_right) end = skip_spaces(text, end);
      if (begin > done) visit_text(text.substr(done, begin - done));
      visit_token(token->id);
      done = end;
    }
    if (done < text.size()) visit_text(text.substr(done));
  }

 private:
  // A node of the tree of contents; children are sorted by byte.
  struct Node {
    std::vector<std::pair<unsigned char, int32_t>> children;
    int32_t token = -1;
  };

  // The token at the earliest place from `position` on, to which `position` is moved; or null.
  const AddedToken* find(std::string_view text, size_t& position) const;
  const AddedToken* longest_at(std::string_view text, size_t position) const;
  static bool touches_word(std::string_view text, size_t begin, size_t end);
  static size_t skip_spaces(std::string_view text, size_t position);
  static size_t skip_spaces_back(std::string_view text, size_t position, size_t limit);

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<bool, 256> begins_{};  // first bytes of contents
  int only_beginning_ = -1;         // the one first byte, where there is only one
};

}  // namespace kinora::tokenizer
