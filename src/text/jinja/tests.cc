// The tests after `is`.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/jinja/arithmetic.h"
#include "text/jinja/characters.h"
#include "text/jinja/printed.h"
#include "text/jinja/runtime.h"

namespace kinora::jinja {
namespace {

const Value& other(const Arguments& arguments) {
  if (arguments.values.empty()) throw Problem("a test lacks what to compare with");
  return arguments.values[0];
}

int64_t whole(const Value& value) {
  if (value.is_undefined()) throw Problem(value.why_undefined());
  if (!value.is_integer()) throw Problem("odd and even need a whole number");
  return value.integer();
}

using In = const Value&;
using With = const Arguments&;

bool is_iterable(In v) {
  return v.is_undefined() || v.is_string() || v.is_sequence() || v.is_dict();
}
bool has_items(In v) {
  return v.is_undefined() || v.is_string() || v.is_indexable() || v.is_dict();
}
bool at_most(In a, In b) { return !less(b, a); }

struct NamedTest {
  std::string_view name;
  Test test;
};

constexpr std::array tests{
    NamedTest{"defined", [](Runtime&, In v, With) { return !v.is_undefined(); }},
    NamedTest{"undefined", [](Runtime&, In v, With) { return v.is_undefined(); }},
    NamedTest{"none", [](Runtime&, In v, With) { return v.is_none(); }},
    NamedTest{"boolean", [](Runtime&, In v, With) { return v.is_boolean(); }},
    NamedTest{"true", [](Runtime&, In v, With) { return v.is_boolean() && v.boolean(); }},
    NamedTest{"false", [](Runtime&, In v, With) { return v.is_boolean() && !v.boolean(); }},
    NamedTest{"integer", [](Runtime&, In v, With) { return v.is_integer() && !v.is_boolean(); }},
    NamedTest{"float", [](Runtime&, In v, With) { return v.is_real(); }},
    NamedTest{"number", [](Runtime&, In v, With) { return v.is_number(); }},
    NamedTest{"string", [](Runtime&, In v, With) { return v.is_string(); }},
    NamedTest{"mapping", [](Runtime&, In v, With) { return v.is_dict(); }},
    NamedTest{"iterable", [](Runtime&, In v, With) { return is_iterable(v); }},
    NamedTest{"sequence", [](Runtime&, In v, With) { return has_items(v); }},
    NamedTest{"callable", [](Runtime&, In v, With) { return v.is_callable() || v.is_undefined(); }},
    NamedTest{"odd", [](Runtime&, In v, With) { return whole(v) % 2 != 0; }},
    NamedTest{"even", [](Runtime&, In v, With) { return whole(v) % 2 == 0; }},
    NamedTest{"divisibleby",
              [](Runtime& r, In v, With a) { return equal(modulo(r, v, other(a)), 0); }},
    NamedTest{"eq", [](Runtime&, In v, With a) { return equal(v, other(a)); }},
    NamedTest{"equalto", [](Runtime&, In v, With a) { return equal(v, other(a)); }},
    NamedTest{"==", [](Runtime&, In v, With a) { return equal(v, other(a)); }},
    NamedTest{"ne", [](Runtime&, In v, With a) { return !equal(v, other(a)); }},
    NamedTest{"!=", [](Runtime&, In v, With a) { return !equal(v, other(a)); }},
    NamedTest{"lt", [](Runtime&, In v, With a) { return less(v, other(a)); }},
    NamedTest{"lessthan", [](Runtime&, In v, With a) { return less(v, other(a)); }},
    NamedTest{"<", [](Runtime&, In v, With a) { return less(v, other(a)); }},
    NamedTest{"le", [](Runtime&, In v, With a) { return at_most(v, other(a)); }},
    NamedTest{"<=", [](Runtime&, In v, With a) { return at_most(v, other(a)); }},
    NamedTest{"gt", [](Runtime&, In v, With a) { return less(other(a), v); }},
    NamedTest{"greaterthan", [](Runtime&, In v, With a) { return less(other(a), v); }},
    NamedTest{">", [](Runtime&, In v, With a) { return less(other(a), v); }},
    NamedTest{"ge", [](Runtime&, In v, With a) { return at_most(other(a), v); }},
    NamedTest{">=", [](Runtime&, In v, With a) { return at_most(other(a), v); }},
    NamedTest{"in", [](Runtime&, In v, With a) { return contains(other(a), v); }},
    NamedTest{"sameas", [](Runtime&, In v, With a) { return v.same_as(other(a)); }},
    NamedTest{"lower",
              [](Runtime&, In v, With) {
                const std::string text = to_text(v);
                return lower(text) == text && upper(text) != text;
              }},
    NamedTest{"upper",
              [](Runtime&, In v, With) {
                const std::string text = to_text(v);
                return upper(text) == text && lower(text) != text;
              }},
    NamedTest{"escaped", [](Runtime&, In, With) { return false; }},
    NamedTest{"filter", [](Runtime&, In v, With) { return find_filter(to_text(v)) != nullptr; }},
    NamedTest{"test", [](Runtime&, In v, With) { return find_test(to_text(v)) != nullptr; }},
};

}  // namespace

Test find_test(std::string_view name) {
  const auto found = std::ranges::find(tests, name, &NamedTest::name);
  return found == tests.end() ? nullptr : found->test;
}

}  // namespace kinora::jinja
