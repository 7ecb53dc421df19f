// Cutting text into the words within which byte pairs are merged, by the regular expression that a
// tokenizer.json names. Three expressions, those of GPT-2, Qwen2 and Llama 3, are matched by hand,
// an order of magnitude faster; all others run in PCRE2, and in the tests these do as well.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/tokenizer_split_known.h"

namespace kinora::tokenizer {

// An expression written for Hugging Face's engine (Oniguruma, Ruby syntax), run by PCRE2.
class RegexSplit {
 public:
  // Throws an unsupported error that names the part of the expression it cannot carry over.
  explicit RegexSplit(const std::string& expression);
  ~RegexSplit();
  RegexSplit(const RegexSplit&) = delete;
  RegexSplit& operator=(const RegexSplit&) = delete;

  struct Match {
    size_t begin, end;
  };
  // The first match at or after `start`.
  std::optional<Match> find(std::string_view text, size_t start) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
  std::string expression_;
};

// The same expression in PCRE2's syntax (exposed for the tests).
std::string to_pcre2(std::string_view expression);

class Splitter {
 public:
  enum class Engine { fastest, regex };
  explicit Splitter(const std::string& expression, Engine engine = Engine::fastest);

  // Calls visit(word) for every match and for every stretch between matches, in order; the words
  // joined are `text`. No word is empty.
  template <typename Visit>
  void for_each_word(std::string_view text, Visit&& visit) const {
    if (!known_) return for_each_match(text, visit);
    switch (*known_) {
      case KnownSplit::gpt2:
        return for_each_known_word<KnownSplit::gpt2>(text, visit);
      case KnownSplit::qwen2:
        return for_each_known_word<KnownSplit::qwen2>(text, visit);
      case KnownSplit::llama3:
        return for_each_known_word<KnownSplit::llama3>(text, visit);
    }
  }

 private:
  template <typename Visit>
  void for_each_match(std::string_view text, Visit&& visit) const {
    size_t done = 0;
    size_t start = 0;
    while (start <= text.size()) {
      const std::optional<RegexSplit::Match> match = regex_->find(text, start);
      if (!match) break;
      if (match->begin > done) visit(text.substr(done, match->begin - done));
      if (match->end > match->begin) visit(text.substr(match->begin, match->end - match->begin));
      done = match->end;
      start = match->end;
      if (match->end == match->begin) {  // an empty match: go on one character further
        if (start == text.size()) break;
        next_character(text, start);
      }
    }
    if (done < text.size()) visit(text.substr(done));
  }

  std::optional<KnownSplit> known_;
  std::shared_ptr<const RegexSplit> regex_;
};

}  // namespace kinora::tokenizer
