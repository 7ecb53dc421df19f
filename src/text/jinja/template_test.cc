#include "text/jinja/template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace kinora::jinja {
namespace {

using Json = nlohmann::ordered_json;  // mappings keep their order, as Python's do

Value value_of(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    Items items;
    for (const Json& one : json) items.push_back(value_of(one));
    return Value::list(std::move(items));
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& [key, one] : json.items()) dict.put(key, value_of(one));
    return Value::dict(std::move(dict));
  }
  return {};
}

// The clock of tests/reference/make_fixtures/jinja.py.
RenderOptions options() {
  RenderOptions result;
  result.clock = [] {
    std::tm time{};
    time.tm_year = 126;
    time.tm_mon = 10;
    time.tm_mday = 15;
    time.tm_hour = 13;
    time.tm_min = 4;
    time.tm_sec = 5;
    std::mktime(&time);
    return time;
  };
  return result;
}

enum class Lines { compared, not_compared };

// Renders and compares with the case's text, or expects an error.
template <typename Render>
void expect_same(const std::string& name, Render&& render, const Json& expected, Lines lines) {
  SCOPED_TRACE(name);
  try {
    const std::string text = render();
    if (!expected.contains("text")) {
      ADD_FAILURE() << "no error, but " << text;
    } else {
      EXPECT_EQ(text, expected["text"].get<std::string>());
    }
  } catch (const Error& error) {
    if (expected.contains("text")) {
      ADD_FAILURE() << error.what() << "\ninstead of " << expected["text"];
    } else if (lines == Lines::compared && expected["line"] != 0) {
      const std::string line = "line " + std::to_string(expected["line"].get<int>());
      EXPECT_NE(std::string(error.what()).find(line), std::string::npos)
          << error.what() << " does not name " << line;
    }
  }
}

TEST(JinjaTemplate, RendersAsPython) {
  const Json file =
      Json::parse(real_files().read(std::string(KINORA_FIXTURES) + "/chat/jinja.json"));
  ASSERT_GT(file["cases"].size(), 100u);
  const Value variables = value_of(file["variables"]);
  for (const Json& one : file["cases"]) {
    const auto source = one["template"].get<std::string>();
    const auto render = [&] {
      return Template(source, "the template").render(variables.dict(), options());
    };
    expect_same(one["name"].get<std::string>() + "\n" + source, render, one, Lines::compared);
  }
}

// The templates of published models are not in the repository;
// `tests/reference/make published-templates` fetches them and says what to expect. Python names the
// line on which a long expression begins, so that lines are not compared.
TEST(JinjaTemplate, PublishedOnesRenderAsPython) {
  const std::string path = std::string(KINORA_SOURCE) + "/build/reference/templates.json";
  if (!real_files().is_file(path)) {
    GTEST_SKIP() << "no " << path << "; run tests/reference/make published-templates";
  }
  const Json templates = Json::parse(real_files().read(path));
  ASSERT_GT(templates.size(), 50u);
  for (const Json& one : templates) {
    const Template parsed(one["template"].get<std::string>(), "the template");
    for (const Json& test : one["cases"]) {
      const auto render = [&] {
        return parsed.render(value_of(test["variables"]).dict(), options());
      };
      expect_same(one["name"].get<std::string>() + " " + test["name"].get<std::string>(), render,
                  test, Lines::not_compared);
    }
  }
}

// Whatever a template does, it ends, and with an error that says so.
TEST(JinjaTemplate, IsBounded) {
  RenderOptions small;
  small.limits.steps = 200'000;
  small.limits.output = size_t{1} << 20;
  const std::string deep_list = std::string(5000, '[') + std::string(5000, ']');
  std::string long_sum = "1", nots, blocks, calls = "x";
  for (int i = 0; i < 5000; ++i) {
    long_sum += " + 1";
    nots += "not ";
    blocks += "{% if true %}";
    calls += "|trim";
  }
  for (const std::string& source : {
           "{{ " + deep_list + " }}",
           "{{ " + long_sum + " }}",
           "{{ " + nots + "1 }}",
           "{{ " + calls + " }}",
           blocks,
           std::string("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
           std::string(
               "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
           std::string("{% set n = namespace(s='xxxxxxxx') %}{% for i in range(99) %}"
                       "{% set n.s = n.s ~ n.s %}{% endfor %}"),
           std::string("{% set n = namespace(s='xxxxxxxx') %}{% for i in range(99) %}"
                       "{% set n.s = n.s | replace('', n.s) %}{% endfor %}"),
           std::string("{% set n = namespace(s=[1]) %}{% for i in range(99) %}"
                       "{% set n.s = n.s + n.s %}{% endfor %}"),
           std::string("{% set n = namespace(s=1) %}{% for i in range(99999) %}"
                       "{% set n.s = [n.s] %}{% endfor %}"),
           std::string("{% set n = namespace(s=1) %}{% set n.s = n %}{{ n }}"),
           std::string(
               "{% set n = namespace(s=1) %}{% set n.s = [n] %}{{ n == n.s }}{{ n.s | tojson }}"),
           std::string("{{ 'x' * 999999999999 }}"),
           std::string("{{ 9223372036854775807 + 1 }}"),
           std::string("{{ 99 ** 99 }}"),
           std::string("{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}"),
           std::string("{{ '%99999999d' % 1 * 9999 }}"),
       }) {
    SCOPED_TRACE(source.substr(0, 100));
    EXPECT_THROW(Template(source, "x").render({}, small), Error);
  }
}

// A namespace that holds itself, and a macro that outlives its scope, are let go of.
TEST(JinjaTemplate, LetsGoOfWhatHoldsItself) {
  EXPECT_EQ(Template("{% set a = namespace(x=1) %}{% set b = namespace(a=a) %}{% set a.b = b %}"
                     "{% for i in range(3) %}{% macro m() %}{{ i }}{% endmacro %}{% set a.m = m %}"
                     "{% endfor %}{{ a.m() }}{{ a.b.a.x }}",
                     "x")
                .render({}),
            "21");
}

TEST(JinjaTemplate, ErrorsSayWhatAndWhere) {
  const auto error_of = [](const std::string& source) -> std::pair<ErrorKind, std::string> {
    try {
      return {ErrorKind::internal, Template(source, "a/chat_template.jinja").render({})};
    } catch (const Error& error) {
      return {error.kind(), error.what()};
    }
  };
  using Expected = std::pair<ErrorKind, std::string>;
  EXPECT_EQ(error_of("\n\n{{ x.y }}"),
            Expected(ErrorKind::bad_input, "a/chat_template.jinja, line 3: 'x' is undefined"));
  EXPECT_EQ(error_of("\n{% if x"), Expected(ErrorKind::bad_input,
                                            "a/chat_template.jinja, line 2: a tag is not closed "
                                            "with %}"));
  // Nothing opens another file.
  for (const std::string tag : {"include", "import", "from", "extends"}) {
    EXPECT_EQ(error_of("{% " + tag + " '/etc/passwd' %}"),
              Expected(ErrorKind::unsupported,
                       "a/chat_template.jinja, line 1: the tag '" + tag + "' is not supported"));
  }
  EXPECT_EQ(error_of("{{ '{0.__class__}'.format(1) }}").second,
            "a/chat_template.jinja, line 1: the format field {0.__class__} is not supported");
  EXPECT_EQ(error_of("\n{{ 'x' | xmlattr }}"),
            Expected(ErrorKind::unsupported,
                     "a/chat_template.jinja, line 2: the filter 'xmlattr' is not supported"));
  EXPECT_EQ(error_of("\n{{ raise_exception('why') }}"),
            Expected(ErrorKind::usage,
                     "the model's chat template refuses the conversation: why "
                     "(a/chat_template.jinja, line 2)"));
  EXPECT_EQ(error_of("\xff").first, ErrorKind::bad_input);
}

}  // namespace
}  // namespace kinora::jinja
