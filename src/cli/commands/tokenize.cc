#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/command_line.h"
#include "cli/model_name.h"
#include "text/tokenizer.h"

namespace kinora::cli {
namespace {

using nlohmann::json;

struct TokenizeFlags {
  std::string model;
  std::string text = "-";
  bool begin = false;
  bool json = false;
};

std::string standard_input() {
  std::string text;
  char buffer[1 << 16];
  size_t count = 0;
  while ((count = std::fread(buffer, 1, sizeof buffer, stdin)) > 0) text.append(buffer, count);
  if (std::ferror(stdin)) throw Error(ErrorKind::bad_input, "standard input cannot be read");
  return text;
}

int tokenize(const TokenizeFlags& flags) {
  const Tokenizer tokenizer = Tokenizer::load(real_files(), find_model(flags.model));
  const std::string text = flags.text == "-" ? standard_input() : flags.text;
  const std::vector<int32_t> ids = tokenizer.encode(text, {.add_special = flags.begin});
  // A piece may be part of a character: what is no UTF-8 is shown as U+FFFD.
  const auto shown = [](const json& value, int indent) {
    return value.dump(indent, ' ', false, json::error_handler_t::replace);
  };
  if (flags.json) {
    json pieces = json::array();
    for (const int32_t id : ids) pieces.push_back(std::string(tokenizer.bytes_of(id)));
    fmt::print("{}\n", shown({{"count", ids.size()}, {"ids", ids}, {"pieces", pieces}}, -1));
    return 0;
  }
  for (const int32_t id : ids) {
    fmt::print("{:>8}  {}\n", id, shown(std::string(tokenizer.bytes_of(id)), -1));
  }
  return 0;
}

}  // namespace

void add_tokenize(CommandLine& line) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command =
      line.app.add_subcommand("tokenize", "Show the tokens that a model makes of a text");
  command->add_option("text", flags->text, "The text; - or nothing reads standard input")
      ->type_name("TEXT");
  command->add_option("-m,--model", flags->model, "A model's name or directory")
      ->type_name("MODEL");
  command->add_flag("--begin", flags->begin,
                    "Put around the text what the tokenizer puts around a whole text");
  command->add_flag("--json", flags->json, "Print one JSON object: count, ids, pieces");
  command->footer(
      "Examples:\n"
      "  kinora tokenize \"What is this?\" -m DIR\n"
      "  kinora tokenize --json -m DIR < prompt.txt");
  command->callback([flags, &line] { line.action = [flags] { return tokenize(*flags); }; });
}

}  // namespace kinora::cli
