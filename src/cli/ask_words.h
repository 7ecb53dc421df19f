// The words behind `kinora ask`: inputs, then the question. What is meant is never guessed: words
// that lack a question, have it in front, or are a question without quotes are usage errors that
// show the command to write instead. Used by command_ask.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kinora::cli {

struct AskWords {
  std::vector<std::string> inputs;
  std::string question;
};

// A word that can only be an input: "demo", "-", an address, a path or name that is there or looks
// like a file of pictures. `exists` says whether something of that name is there.
bool is_input_word(std::string_view word, const std::function<bool(const std::string&)>& exists);

// Takes the words apart. Throws a usage error.
AskWords split_ask_words(const std::vector<std::string>& words,
                         const std::function<bool(const std::string&)>& exists);

// The same with what is on this machine's disk.
AskWords split_ask_words(const std::vector<std::string>& words);

}  // namespace kinora::cli
