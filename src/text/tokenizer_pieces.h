// SentencePiece's two models, as Hugging Face's tokenizer.json writes them. Words are not split
// into bytes but into characters: pairs of them are merged, or the pieces with the best scores are
// taken. A character that no piece holds becomes the tokens of its bytes, or the unknown token.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/byte_pair.h"
#include "text/tokenizer_file.h"

namespace kinora::tokenizer {

// `text` with every `from` (not empty) replaced.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

// What the normalizers of a file make of a text; `text` itself where there are none.
std::string_view normalize(std::string_view text, const std::vector<TextStep>& steps,
                           std::string& scratch);

// Calls visit(word) for every word of a text whose spaces are marked. `first`: the text begins the
// whole input.
template <typename Visit>
void for_each_marked_word(std::string_view text, bool first, const SpaceMarks& marks,
                          const Visit& visit) {
  std::string marked = replaced(text, " ", marks.mark);
  const bool prepends = marks.prepend == SpaceMarks::Prepend::always ||
                        (marks.prepend == SpaceMarks::Prepend::first && first);
  if (prepends && !marked.starts_with(marks.mark)) marked.insert(0, marks.mark);
  if (!marks.split) return visit(std::string_view(marked));
  const std::string_view all = marked;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find(marks.mark, begin + 1), all.size());
    visit(all.substr(begin, end - begin));
    begin = end;
  }
}

// Merges characters, in the order in which their pairs were learnt.
class CharacterPairs {
 public:
  // Takes the vocabulary out of the file.
  explicit CharacterPairs(TokenizerFile& file);

  void encode(std::string_view word, BytePair::Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  std::unordered_map<std::string, int32_t> vocabulary_;
  std::array<int32_t, 256> byte_tokens_;
  BytePair merges_;
  int32_t unknown_;
  bool fuse_unknown_;
  bool ignore_merges_;
};

// Takes the pieces whose scores add up to the most.
class Unigram {
 public:
  explicit Unigram(TokenizerFile& file);

  void encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  // A node of the tree of pieces; children are sorted by byte.
  struct Node {
    std::vector<std::pair<unsigned char, int32_t>> children;
    int32_t token = -1;
  };
  void add(std::string_view piece, int32_t token);
  // The tokens of a stretch that no piece covers.
  void encode_unknown(std::string_view stretch, std::vector<int32_t>& out) const;

  std::unordered_map<std::string, int32_t> vocabulary_;
  std::array<int32_t, 256> byte_tokens_;
  std::vector<double> scores_;
  std::vector<Node> nodes_;
  int32_t unknown_;
  double unknown_score_ = 0;
};

}  // namespace kinora::tokenizer
