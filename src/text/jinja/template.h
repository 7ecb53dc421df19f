// A chat template as model directories publish it: the part of the Jinja language that such
// templates use, with the settings that transformers gives it (blocks trimmed, a sandbox in which
// nothing can be changed, tojson without escapes, raise_exception, strftime_now). A template sees
// the values it is given and nothing else. model/chat/ renders conversations with it.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace kinora::jinja {

struct RenderOptions {
  Limits limits;
  std::function<std::tm()> clock;  // local time when empty
};

// May be used by many threads at once.
class Template {
 public:
  // `where` is what errors call the template. Throws bad_input for a template that is wrong and
  // unsupported for one that asks for more than kinora reads; both name the line.
  Template(std::string_view source, std::string where);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // Throws, besides those two, a usage error for what the template itself refuses
  // (raise_exception) and resource for one that takes more than the limits.
  std::string render(const Dict& variables, const RenderOptions& options = {}) const;

 private:
  [[noreturn]] void fail(const Problem& problem, int line) const;

  std::string where_;
  std::unique_ptr<const Body> body_;
};

}  // namespace kinora::jinja
