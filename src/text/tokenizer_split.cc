#include "text/tokenizer_split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdio>
#include <mutex>
#include <vector>

#include "base/error.h"

namespace kinora::tokenizer {
namespace {

std::string range_text(std::span<const CharacterRange> ranges) {
  std::string text;
  char buffer[40];
  for (const CharacterRange& range : ranges) {
    std::snprintf(buffer, sizeof buffer, "\\x{%x}-\\x{%x}", static_cast<unsigned>(range.first),
                  static_cast<unsigned>(range.last));
    text += buffer;
  }
  return text;
}

// Rewrites an Oniguruma expression for PCRE2, where the two mean different things by the same sign.
class Translator {
 public:
  explicit Translator(std::string_view expression) : in_(expression) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_character(c);
      } else {
        plain_character(c);
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::unsupported, what + " in the split expression " + std::string(in_));
  }

  bool follows(std::string_view text) const { return in_.substr(at_, text.size()) == text; }

  void class_character(char c) {
    if (c == '[' && !follows("[:")) refuse("a set inside a set");
    if (follows("&&")) refuse("an intersection of sets");
    if (c == '[') {
      const size_t end = in_.find(":]", at_);
      if (end == std::string_view::npos) refuse("an unclosed [:");
      out_ += in_.substr(at_, end + 2 - at_);
      at_ = end + 2;
      return;
    }
    const bool is_first = at_ == class_begin_;
    if (c == ']' && !is_first) in_class_ = false;
    out_ += c;
    ++at_;
    if (is_first && c == '^') class_begin_ = at_;
  }

  void plain_character(char c) {
    if (c == '[') {
      in_class_ = true;
      class_begin_ = at_ + 1;
    } else if (c == '(' && (follows("(?m") || follows("(?x") || follows("(?~"))) {
      refuse("the group " + std::string(in_.substr(at_, 3)));
    } else if (c == '}' && at_ + 1 < in_.size() && in_[at_ + 1] == '+') {
      refuse("a repeated repetition }+");
    }
    out_ += c;
    ++at_;
  }

  // A set that stands alone outside brackets, and joins the set around it inside.
  void put_set(const std::string& members, bool negated) {
    if (in_class_ && negated) refuse("a negated set inside a set");
    if (in_class_) {
      out_ += members;
    } else {
      out_ += (negated ? "[^" : "[") + members + "]";
    }
  }

  void escape() {
    if (at_ + 1 >= in_.size()) refuse("a lone backslash at the end");
    const char c = in_[at_ + 1];
    at_ += 2;
    switch (c) {
      case 's':  // PCRE2's own also matches U+180E
        out_ += "\\p{White_Space}";
        return;
      case 'S':
        out_ += "\\P{White_Space}";
        return;
      case 'h':  // a hexadecimal digit there, a horizontal space here
      case 'H':
        return put_set("0-9a-fA-F", c == 'H');
      case 'w':
      case 'W':
        return put_set("\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}" + range_text(new_letter_ranges()),
                       c == 'W');
      case 'u':
        if (at_ + 4 > in_.size()) refuse("a short \\u");
        out_ += "\\x{" + std::string(in_.substr(at_, 4)) + "}";
        at_ += 4;
        return;
      case 'p':
      case 'P':
        return property(c == 'P');
      case 'R':
      case 'X':
      case 'K':
      case 'G':
      case 'Z':
      case 'O':
      case 'N':
      case 'y':
      case 'Y':
        refuse(std::string("\\") + c);
      default:
        out_ += '\\';
        out_ += c;
    }
  }

  void property(bool negated) {
    const size_t end = in_.find('}', at_);
    if (at_ >= in_.size() || in_[at_] != '{' || end == std::string_view::npos) {
      refuse("a property without {}");
    }
    std::string name(in_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.erase(0, 1);
    }
    if (name == "Letter") name = "L";
    if (name == "Number") name = "N";
    if ((name == "L" || name == "N") && !(in_class_ && negated)) {
      const auto newer = name == "L" ? new_letter_ranges() : new_number_ranges();
      return put_set("\\p{" + name + "}" + range_text(newer), negated);
    }
    out_ += (negated ? "\\P{" : "\\p{") + name + "}";
  }

  std::string_view in_;
  size_t at_ = 0;
  bool in_class_ = false;
  size_t class_begin_ = 0;
  std::string out_;
};

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};
using MatchData = std::unique_ptr<pcre2_match_data, FreeMatch>;

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

std::string to_pcre2(std::string_view expression) { return Translator(expression).run(); }

struct RegexSplit::Compiled {
  std::unique_ptr<pcre2_code, FreeCode> code;
  // Working space of matches, lent to one caller at a time.
  std::mutex mutex;
  std::vector<MatchData> spare;

  MatchData borrow() {
    {
      const std::lock_guard lock(mutex);
      if (!spare.empty()) {
        MatchData data = std::move(spare.back());
        spare.pop_back();
        return data;
      }
    }
    return MatchData(pcre2_match_data_create_from_pattern(code.get(), nullptr));
  }
  void give_back(MatchData data) {
    const std::lock_guard lock(mutex);
    spare.push_back(std::move(data));
  }
};

RegexSplit::RegexSplit(const std::string& expression)
    : compiled_(std::make_unique<Compiled>()), expression_(expression) {
  const std::string translated = to_pcre2(expression);
  const std::unique_ptr<pcre2_compile_context, FreeContext> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  // In Ruby's syntax ^ and $ stand at every line.
  compiled_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                      translated.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                                      &error, &offset, context.get()));
  if (!compiled_->code) {
    throw Error(ErrorKind::unsupported,
                "cannot compile the split expression " + expression + ": " + message_of(error));
  }
  // Where there is no just-in-time compiler the interpreter gives the same answers.
  pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE);
}

RegexSplit::~RegexSplit() = default;

std::optional<RegexSplit::Match> RegexSplit::find(std::string_view text, size_t start) const {
  MatchData data = compiled_->borrow();
  const auto run = [&](uint32_t options) {
    return pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                       text.size(), start, PCRE2_NO_UTF_CHECK | options, data.get(), nullptr);
  };
  int count = run(0);
  // The interpreter keeps its stack on the heap and reaches further.
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = run(PCRE2_NO_JIT);
  std::optional<Match> match;
  if (count >= 0) {
    const size_t* places = pcre2_get_ovector_pointer(data.get());
    match = Match{places[0], places[1]};
  }
  compiled_->give_back(std::move(data));
  if (count < 0 && count != PCRE2_ERROR_NOMATCH) {
    throw Error(ErrorKind::resource,
                "the split expression " + expression_ + " gave up: " + message_of(count));
  }
  return match;
}

Splitter::Splitter(const std::string& expression, Engine engine) {
  if (engine == Engine::fastest) {
    if (expression == kGpt2Expression) known_ = KnownSplit::gpt2;
    if (expression == kQwen2Expression) known_ = KnownSplit::qwen2;
    if (expression == kLlama3Expression) known_ = KnownSplit::llama3;
  }
  if (!known_) regex_ = std::make_shared<const RegexSplit>(expression);
}

}  // namespace kinora::tokenizer
