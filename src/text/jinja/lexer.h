// Cuts a template into data and the tokens of its tags, as jinja2 does with trim_blocks and
// lstrip_blocks set: a tag swallows the line end after it and the white space before it on its
// line; "-" swallows all white space on its side, "+" none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace kinora::jinja {

struct Token {
  enum class Kind {
    data,
    variable_begin,
    variable_end,
    block_begin,
    block_end,
    name,
    string,
    number,
    op,
    end,
  };
  Kind kind = Kind::end;
  int line = 1;
  std::string text;  // of data, a name, an operator, or a string with its escapes undone
  Value number;
};

// A Problem and the line it was found on.
struct ProblemAtLine {
  Problem problem;
  int line;
};

// The last token is the end. Throws ProblemAtLine for a tag that is not closed and for characters
// that no tag has.
std::vector<Token> tokenize(std::string_view source);

}  // namespace kinora::jinja
