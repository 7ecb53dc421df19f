#include "cli/checks.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "base/policy/names.h"

namespace kinora::cli {
namespace {

// All of the text as a number of this type.
template <typename Number>
std::optional<Number> read(std::string_view text) {
  if (text.starts_with("+")) text.remove_prefix(1);
  Number number{};
  const char* end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || after != end) return std::nullopt;
  return number;
}

// CLI11 shows what a validator returns behind the option's name; an empty text is no error.
template <typename Accepts>
CLI::Validator accepting(Accepts accepts, std::string range) {
  return CLI::Validator(
      [accepts, range](std::string& text) {
        return accepts(text) ? std::string() : fmt::format("{} is not {}", in_quotes(text), range);
      },
      "");
}

}  // namespace

CLI::Validator whole(int64_t low, int64_t high) {
  const bool open = high == INT32_MAX || high == INT64_MAX;
  const std::string range = open ? fmt::format("a whole number of {} or more", low)
                                 : fmt::format("a whole number from {} to {}", low, high);
  return CLI::Validator(
      [low, high, open, range](std::string& text) {
        const auto number = read<int64_t>(text);
        if (number && *number >= low && *number <= high) return std::string();
        const bool too_large = open && number && *number > high;
        return fmt::format("{} is not {}{}", in_quotes(text), range,
                           too_large ? fmt::format(", {} at most", high) : "");
      },
      "");
}

CLI::Validator threads() { return whole(0, 4096); }

CLI::Validator above_zero() {
  return accepting(
      [](const std::string& text) {
        const auto number = read<double>(text);
        return number && *number > 0 && std::isfinite(*number);
      },
      "a number above 0");
}

CLI::Validator between(double low, double high) {
  return accepting(
      [low, high](const std::string& text) {
        const auto number = read<double>(text);
        return number && *number >= low && *number <= high;
      },
      fmt::format("a number from {:g} to {:g}", low, high));
}

CLI::Validator one_of(std::vector<std::string> words) {
  return CLI::Validator(
      [words](std::string& text) {
        if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
        const std::string_view meant = nearest_name(text, words);
        return fmt::format("{} is not {}{}", in_quotes(text), list_names(words, "or"),
                           meant.empty() ? "" : fmt::format("; did you mean {}?", meant));
      },
      "");
}

void check_numbers(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    const std::string type = option->get_type_name();
    if (type == "INT") {
      option->check(
          accepting([](const std::string& text) { return read<int64_t>(text).has_value(); },
                    "a whole number"));
    } else if (type == "UINT") {
      option->check(
          accepting([](const std::string& text) { return read<uint64_t>(text).has_value(); },
                    "a whole number of 0 or more"));
    } else if (type == "FLOAT") {
      option->check(accepting(
          [](const std::string& text) { return read<double>(text).has_value(); }, "a number"));
    }
  }
  for (CLI::App* sub : command.get_subcommands([](CLI::App*) { return true; })) check_numbers(*sub);
}

}  // namespace kinora::cli
