// A template's text to its tree, by jinja2's grammar with loop controls and `generation` blocks.
// Inheritance, includes and imports, which a chat template has no use for, are refused.
#pragma once

#include <string_view>

#include "text/jinja/syntax.h"

namespace kinora::jinja {

// Throws ProblemAtLine (lexer.h).
Body parse(std::string_view source);

}  // namespace kinora::jinja
