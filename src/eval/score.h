// How right an answer is, and how sure a percentage is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "eval/dataset.h"

namespace kinora {

// The question as it is put to the model: options are listed with letters.
std::string eval_prompt(const EvalItem& item);

// Lower case, words separated by single spaces, no punctuation, no leading article.
std::string normalised(std::string_view text);

// From 0 to 1: an open answer is right or wrong by its normalised text, which is or (`contains`)
// holds the words of an accepted one; with options the letter or the text of the chosen one counts;
// with events it is the F1 of the sentences against them.
double score_answer(const EvalItem& item, const std::string& answer);

// Which option an answer names, or -1.
int chosen_option(const std::vector<std::string>& options, const std::string& answer);

// F1 of the sentences of a text (ended by a full stop, semicolon or line end) against the events.
double event_f1(const std::vector<std::string>& events, const std::string& text);

// The 95 % Wilson interval of a share: the range it may lie in, given this number of trials.
struct ConfidenceInterval {
  double low = 0;
  double high = 1;
};
ConfidenceInterval wilson_interval(double successes, int64_t tries);

// The two-sided probability that two equally good methods differ in this many paired answers:
// `only_first` right only with the first, `only_second` only with the second (exact McNemar test).
double paired_probability(int64_t only_first, int64_t only_second);

}  // namespace kinora
