#include "text/jinja/template.h"

#include <fmt/format.h>

#include "base/error.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"
#include "text/tokenizer_utf8.h"

namespace kinora::jinja {
namespace {

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm result{};
  localtime_r(&now, &result);
  return result;
}

}  // namespace

Template::Template(std::string_view source, std::string where) : where_(std::move(where)) {
  if (tokenizer::find_invalid_utf8(source) != std::string_view::npos) {
    throw Error(ErrorKind::bad_input, fmt::format("{} is not valid UTF-8", where_));
  }
  try {
    body_ = std::make_unique<const Body>(parse(source));
  } catch (const ProblemAtLine& error) {
    fail(error.problem, error.line);
  }
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

void Template::fail(const Problem& problem, int line) const {
  const std::string at = fmt::format("{}, line {}", where_, line);
  if (problem.kind == Problem::Kind::raised) {
    throw Error(ErrorKind::usage,
                fmt::format("the model's chat template refuses the conversation: {} ({})",
                            problem.message, at));
  }
  const ErrorKind kind = problem.kind == Problem::Kind::wrong         ? ErrorKind::bad_input
                         : problem.kind == Problem::Kind::unsupported ? ErrorKind::unsupported
                                                                      : ErrorKind::resource;
  throw Error(kind, fmt::format("{}: {}", at, problem.message));
}

std::string Template::render(const Dict& variables, const RenderOptions& options) const {
  Interpreter interpreter(variables, options.limits, options.clock ? options.clock : local_time);
  try {
    return interpreter.run(*body_);
  } catch (const Problem& problem) {
    fail(problem, interpreter.line());
  }
}

}  // namespace kinora::jinja
