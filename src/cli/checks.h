// Checks of the values of flags, whose errors say what is accepted in words: "--max-tokens: '0' is
// not a whole number of 1 or more". Used wherever flags are defined.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace kinora::cli {

// A whole number within bounds, both allowed.
CLI::Validator whole(int64_t low, int64_t high = INT32_MAX);
// A number above 0; a number within bounds, both allowed.
CLI::Validator above_zero();
CLI::Validator between(double low, double high);
// A number of threads; 0 is one per core.
CLI::Validator threads();
// One of some words; the nearest is suggested.
CLI::Validator one_of(std::vector<std::string> words);

// Lets every option of this command and those below it that takes a number refuse what is none in
// the same words.
void check_numbers(CLI::App& command);

}  // namespace kinora::cli
