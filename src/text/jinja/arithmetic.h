// Operators between two values, as Python computes them.
#pragma once

#include <optional>
#include <string_view>

#include "text/jinja/runtime.h"

namespace kinora::jinja {

// All throw a Problem for types that Python refuses, and where an integer leaves 64 bits.
Value add(Runtime& runtime, const Value& left, const Value& right);
Value subtract(const Value& left, const Value& right);
Value multiply(Runtime& runtime, const Value& left, const Value& right);
Value divide(const Value& left, const Value& right);
Value floor_divide(const Value& left, const Value& right);
Value modulo(Runtime& runtime, const Value& left, const Value& right);
Value power(const Value& left, const Value& right);
Value negative(const Value& value);

// object[first:last:step] of a text, list, tuple or range; undefined for others.
Value slice(Runtime& runtime, const Value& object, const Value& first, const Value& last,
            const Value& step);

// What int() and float() read; nothing for other texts. Base 0 is not read.
std::optional<int64_t> parse_integer(std::string_view text, int base);
std::optional<double> parse_real(std::string_view text);

}  // namespace kinora::jinja
